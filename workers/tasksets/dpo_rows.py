"""`dpo`: two answers to one prompt, the one that is preferred first."""

from __future__ import annotations

import msgspec
import numpy as np

from rftd.workers.chat.message import Message
from rftd.workers.chat.tokenizer import Tokenizer
from rftd.workers.tasksets.conversation import answered
from rftd.workers.tasksets.record import Record
from rftd.workers.tasksets.train_row import TrainRow, fitted, plain_prompt


def dpo_rows(reader: Record, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
    """Two rows, chosen and rejected; if either has no room for its answer, nothing of the pair is learned.

    `plaintext`: a prompt and two texts, each followed by the end-of-sequence id (with tools they are a conversation).
    `messages`: a conversation and two continuations of it, lists of messages or one message each; without a column of
    its own, the conversation is what the two begin with in common.
    """
    both = _plaintext(reader, tokenizer) if reader.form.prompt_type == "plaintext" else _chat(reader, tokenizer)
    for (prompt, response), key in zip(both, (reader.form.chosen_key, reader.form.rejected_key), strict=True):
        if not prompt or not response:
            raise reader.error(f"has an empty {'prompt' if not prompt else 'response'}", key)
    made = tuple(fitted(prompt, response, max_model_len=max_model_len) for prompt, response in both)
    if any(row.cut == "prompt" for row in made):
        return tuple(msgspec.structs.replace(row, loss_mask=np.zeros_like(row.loss_mask), cut="prompt") for row in made)
    return made


Pair = tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]
"""Prompt and response of chosen and of rejected."""


def _plaintext(reader: Record, tokenizer: Tokenizer) -> Pair:
    form = reader.form
    asked, system_prompt = reader.words(form.prompt_key), reader.system_prompt()
    chosen, rejected = reader.words(form.chosen_key), reader.words(form.rejected_key)
    if reader.tools():
        before = (*([Message("system", system_prompt)] if system_prompt else []), Message("user", asked))
        return (
            answered(reader, tokenizer, before, (Message("assistant", chosen),)),
            answered(reader, tokenizer, before, (Message("assistant", rejected),)),
        )
    prompt = plain_prompt(asked, system_prompt=system_prompt, reply_prefix=form.reply_prefix)
    prompt_ids = tokenizer.encode(prompt, special=True)
    ends = tokenizer.eos_ids[:1]

    def response(answer: str) -> list[int]:
        return [*tokenizer.encode(answer.removeprefix(form.reply_prefix or "")), *ends]

    return (prompt_ids, response(chosen)), (prompt_ids, response(rejected))


def _chat(reader: Record, tokenizer: Tokenizer) -> Pair:
    form = reader.form
    if reader.has(form.messages_key):
        before = reader.conversation(form.messages_key)
        chosen, rejected = reader.messages(form.chosen_key), reader.messages(form.rejected_key)
    else:
        whole, other = reader.conversation(form.chosen_key), reader.conversation(form.rejected_key)
        same = 0
        while same < min(len(whole), len(other)) - 1 and whole[same] == other[same]:
            same += 1
        before, chosen, rejected = whole[:same], whole[same:], other[same:]
    for answer, key in ((chosen, form.chosen_key), (rejected, form.rejected_key)):
        if not before or answer[0].role != "assistant" or answer[-1].role != "assistant":
            raise reader.error(f"has messages under {key!r} that are no answer of the assistant to a prompt", key)
    return answered(reader, tokenizer, before, chosen), answered(reader, tokenizer, before, rejected)
