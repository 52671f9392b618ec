"""`cpt`: a text of which every token is learned."""

from __future__ import annotations

from rftd.workers.chat.tokenizer import Tokenizer
from rftd.workers.tasksets.record import Record
from rftd.workers.tasksets.train_row import TrainRow, fitted


def cpt_rows(reader: Record, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
    """One row: `plaintext` is the text under `prompt_key`, `messages` the whole conversation in the chat template.

    The first token, which nothing comes before, is the prompt; the end-of-sequence id is learned as well.
    """
    form = reader.form
    if form.prompt_type == "plaintext":
        ids = tokenizer.encode(reader.words(form.prompt_key), special=True)
    else:
        messages = reader.conversation(form.messages_key)
        ids = tokenizer.encode(tokenizer.chat_text(messages, generation_prompt=False, tools=reader.tools()))
    key = form.prompt_key if form.prompt_type == "plaintext" else form.messages_key
    if not any(token not in tokenizer.eos_ids for token in ids):
        raise reader.error("has an empty text", key)
    if ids[-1] not in tokenizer.eos_ids:
        ids = [*ids, *tokenizer.eos_ids[:1]]
    if len(ids) < 2:
        raise reader.error("has a text of one token: nothing comes before it", key)
    return (fitted(ids[:1], ids[1:], max_model_len=max_model_len),)
