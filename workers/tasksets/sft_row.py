"""`sft`: a prompt and its answer, or a whole conversation of which the assistant's messages are learned."""

from __future__ import annotations

from rftd.workers.chat.message import Message
from rftd.workers.chat.tokenizer import Tokenizer
from rftd.workers.tasksets.conversation import answered, spoken
from rftd.workers.tasksets.record import Record
from rftd.workers.tasksets.train_row import TrainRow, fitted, plain_prompt


def sft_rows(reader: Record, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
    """One row.

    `plaintext`: prompt and response as they stand, then the end-of-sequence id; with tools the two are a conversation,
    for only a template says how tools look. `messages`: everything before the last message is the prompt, or with
    `enable_concatenated_multi_turn` everything before the first of the assistant's, each of which is learned.
    """
    if reader.form.prompt_type == "plaintext":
        prompt, response = _plaintext(reader, tokenizer)
    else:
        messages = reader.conversation(reader.form.messages_key)
        if reader.form.enable_concatenated_multi_turn:
            ids, mask = spoken(reader, tokenizer, messages)
            first = mask.index(1)
            if not first:
                raise reader.error("has an empty prompt")
            return (fitted(ids[:first], ids[first:], mask=mask[first:], max_model_len=max_model_len),)
        if len(messages) < 2 or messages[-1].role != "assistant":
            raise reader.error(
                "has messages that are not a prompt and then an answer of the assistant", reader.form.messages_key
            )
        prompt, response = answered(reader, tokenizer, messages[:-1], messages[-1:])
    if not prompt or not response:
        raise reader.error(f"has an empty {'prompt' if not prompt else 'response'}")
    return (fitted(prompt, response, max_model_len=max_model_len),)


def _plaintext(reader: Record, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    form = reader.form
    asked, answer = reader.text(form.prompt_key), reader.text(form.response_key)
    if reader.tools():
        system_prompt = reader.system_prompt()
        before = (*([Message("system", system_prompt)] if system_prompt else []), Message("user", asked))
        return answered(reader, tokenizer, before, (Message("assistant", answer),))
    # The same text, encoded in the same two parts, as a rollout of this prompt has.
    prompt = plain_prompt(asked, system_prompt=reader.system_prompt(), reply_prefix=form.reply_prefix)
    response = tokenizer.encode(answer.removeprefix(form.reply_prefix or ""))
    return tokenizer.encode(prompt, special=True), [*response, *tokenizer.eos_ids[:1]]
