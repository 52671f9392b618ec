"""Conversion of dataset rows to token sequences for training: prompts with answers, pairs, labelled answers, plain
texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.conversation import answered, ended, spoken
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.record import DatasetRecord
from rftd.workers.datasets.recorded import RECORDED, recorded_rollout
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.datasets.train_row import TrainRow, fitted, plain_prompt

Answer = tuple[list[int], list[int]]
"""Token ids of a prompt and of its response."""


def text_answers(reader: DatasetRecord, tokenizer: Tokenizer, question: str, answers: Sequence[str]) -> list[Answer]:
    """Returns the ids of a question with each of several answers, split like a rollout into prompt and response.

    `plaintext`: a conversation in the chat template. `raw`: the bare texts, then the end-of-sequence id. Raises
    DataError for `raw` with tools, because only a template renders tools.
    """
    form = reader.form
    system_prompt = reader.system_prompt()
    prefix = form.reply_prefix or ""
    if form.prompt_type == "plaintext":
        if not question:
            raise reader.error("has an empty prompt", form.prompt_key)
        before = (*([Message("system", system_prompt)] if system_prompt else []), Message("user", question))
        return [
            answered(reader, tokenizer, before, (Message("assistant", prefix + answer.removeprefix(prefix)),), prefix)
            for answer in answers
        ]
    if reader.tools():
        raise reader.error(
            "has tools, which only a chat template renders: write prompt_type: plaintext", form.tools_key
        )
    # The same text, encoded in the same two parts, as in a rollout of this prompt.
    bare = plain_prompt(question, system_prompt=system_prompt, reply_prefix=form.reply_prefix)
    prompt = tokenizer.encode(bare, special=True)
    return [(prompt, ended(tokenizer, tokenizer.encode(answer.removeprefix(prefix)))) for answer in answers]


def chat_answers(
    reader: DatasetRecord,
    tokenizer: Tokenizer,
    before: Sequence[Message],
    answers: Sequence[tuple[str, Sequence[Message]]],
) -> list[Answer]:
    """Returns the ids of each answer (a key for errors, and its messages) as a continuation of the messages `before`.

    Raises DataError for an answer not begun and ended by the assistant, or for an empty conversation.
    """
    for key, answer in answers:
        if not before or answer[0].role != "assistant" or answer[-1].role != "assistant":
            raise reader.error(f"has messages under {key!r} that are not an answer of the assistant to a prompt", key)
    return [answered(reader, tokenizer, before, answer) for _, answer in answers]


def check_not_empty(reader: DatasetRecord, key: str, answer: Answer) -> None:
    """Raises DataError, about `key`, if the prompt or the response has no tokens."""
    prompt, response = answer
    if not prompt or not response:
        raise reader.error(f"has an empty {'prompt' if not prompt else 'response'}", key)


def cpt_rows(reader: DatasetRecord, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
    """Returns the one row of a text: the bare text under `prompt_key`, or `messages` in the chat template.

    The first token, without any before it, is the prompt; the end-of-sequence id is learned as well.
    """
    form = reader.form
    conversation = form.prompt_type == "messages"
    if not conversation:
        ids = tokenizer.encode(reader.words(form.prompt_key), special=True)
    else:
        messages = reader.conversation(form.messages_key)
        ids = tokenizer.encode(tokenizer.chat_text(messages, generation_prompt=False, tools=reader.tools()))
    key = form.messages_key if conversation else form.prompt_key
    if not any(token not in tokenizer.eos_ids for token in ids):
        raise reader.error("has an empty text", key)
    if ids[-1] not in tokenizer.eos_ids:
        ids = [*ids, *tokenizer.eos_ids[:1]]
    if len(ids) < 2:
        raise reader.error("has a text of one token: nothing comes before it", key)
    return (fitted(ids[:1], ids[1:], max_model_len=max_model_len),)


def sft_rows(reader: DatasetRecord, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
    """Returns the one row of a prompt with the answer to learn.

    `plaintext` and `raw`: the texts under `prompt_key` and `response_key`. `messages`: everything before the last
    message is the prompt, or with `enable_concatenated_multi_turn` everything before the assistant's first message;
    then each message of the assistant is learned.
    """
    form = reader.form
    if form.prompt_type != "messages":
        question = reader.text(form.prompt_key)
        [(prompt, response)] = text_answers(reader, tokenizer, question, [reader.text(form.response_key)])
    else:
        messages = reader.conversation(form.messages_key)
        if form.enable_concatenated_multi_turn:
            ids, mask = spoken(reader, tokenizer, messages)
            first = mask.index(1)
            if not first:
                raise reader.error("has an empty prompt")
            return (fitted(ids[:first], ids[first:], mask=mask[first:], max_model_len=max_model_len),)
        if len(messages) < 2 or messages[-1].role != "assistant":
            raise reader.error(
                "has messages that are not a prompt and then an answer of the assistant", form.messages_key
            )
        prompt, response = answered(reader, tokenizer, messages[:-1], messages[-1:])
    if not prompt or not response:
        raise reader.error(f"has an empty {'prompt' if not prompt else 'response'}")
    return (fitted(prompt, response, max_model_len=max_model_len),)


def dpo_rows(reader: DatasetRecord, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
    """Returns the two rows of a pair, chosen and rejected; if either has no room for its answer, neither is learned.

    `plaintext` and `raw`: a prompt and two texts. `messages`: a conversation and two continuations of it, lists of
    messages or one message each; without a column of its own, the conversation is the common beginning of the two.
    """
    form = reader.form
    keys = (form.chosen_key, form.rejected_key)
    if not reader.has(form.chosen_key) and reader.has(form.completion_key) and reader.has(form.label_key):
        problem = "is a completion with a label, not a pair: for algorithm_type kto write schema_type: kto"
        raise reader.error(problem, form.chosen_key)
    if form.prompt_type == "messages":
        both = _chat(reader, tokenizer)
    else:
        both = text_answers(reader, tokenizer, reader.words(form.prompt_key), [reader.words(key) for key in keys])
    for answer, key in zip(both, keys, strict=True):
        check_not_empty(reader, key, answer)
    rows = tuple(fitted(prompt, response, max_model_len=max_model_len) for prompt, response in both)
    # One response alone is no preference; masks of 0 on both keep the pair in the batch.
    if any(row.cut == "prompt" for row in rows):
        return tuple(msgspec.structs.replace(row, loss_mask=np.zeros_like(row.loss_mask), cut="prompt") for row in rows)
    return rows


def _chat(reader: DatasetRecord, tokenizer: Tokenizer) -> list[Answer]:
    """Returns the two answers of a pair of conversations, after the conversation before them."""
    form = reader.form
    if reader.has(form.messages_key):
        before = reader.conversation(form.messages_key)
        chosen = reader.messages(form.chosen_key)
        rejected = reader.messages(form.rejected_key)
    else:
        whole = reader.conversation(form.chosen_key)
        rejected_whole = reader.conversation(form.rejected_key)
        common = 0
        # - 1: equal conversations leave an answer on each side, possibly the same.
        while common < min(len(whole), len(rejected_whole)) - 1 and whole[common] == rejected_whole[common]:
            common += 1
        before = whole[:common]
        chosen = whole[common:]
        rejected = rejected_whole[common:]
    return chat_answers(reader, tokenizer, before, ((form.chosen_key, chosen), (form.rejected_key, rejected)))


def kto_rows(reader: DatasetRecord, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
    """Returns the one row of an answer with a label, desirable or not.

    `plaintext` and `raw`: a prompt and a text. `messages`: a conversation and a continuation, the latter a list of
    messages or one message.
    """
    form = reader.form
    key = form.completion_key
    if not reader.has(key) and reader.has(form.chosen_key) and reader.has(form.rejected_key):
        raise reader.error("is a pair, not a completion with a label: leave schema_type out", key)
    desirable = reader.flag(form.label_key)
    if form.prompt_type != "messages":
        (answer,) = text_answers(reader, tokenizer, reader.words(form.prompt_key), [reader.words(key)])
    else:
        before = reader.conversation(form.messages_key)
        (answer,) = chat_answers(reader, tokenizer, before, ((key, reader.messages(key)),))
    check_not_empty(reader, key, answer)
    row = fitted(*answer, max_model_len=max_model_len)
    return (msgspec.structs.replace(row, desirable=desirable),)


def recorded_rows(reader: DatasetRecord, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
    """Returns the sequences of a recorded rollout, one for each of the steps."""
    del tokenizer  # the row has token ids
    rollout = recorded_rollout(reader, max_model_len)
    sizes = [(step.tokens, step.prompt_tokens) for step in rollout.steps]
    rows = []
    offset = response_offset = 0
    for tokens, prompt_tokens in sizes or [(len(rollout.tokens), rollout.prompt_tokens)]:
        answer = slice(response_offset, response_offset + tokens - prompt_tokens)
        mask = rollout.loss_mask[answer] if rollout.loss_mask is not None else [1] * (tokens - prompt_tokens)
        ids = np.array(rollout.tokens[offset : offset + tokens], np.uint32)
        rows.append(TrainRow(tokens=ids, prompt_tokens=prompt_tokens, loss_mask=np.array(mask, np.uint8)))
        offset += tokens
        response_offset = answer.stop
    return tuple(rows)


SCHEMAS: Final[dict[str, Callable[[DatasetRecord, Tokenizer, int], tuple[TrainRow, ...]]]] = {
    "sft": sft_rows,
    "dpo": dpo_rows,
    "kto": kto_rows,
    "cpt": cpt_rows,
    RECORDED: recorded_rows,
}
"""Function converting a row to sequences, by `schema_type`."""


def make_train_rows(
    record: dict[str, Any], *, spec: TasksetSpec, row: int, tokenizer: Tokenizer, max_model_len: int
) -> tuple[TrainRow, ...]:
    """Converts a row to sequences of at most `max_model_len` tokens each: one, or for `dpo` the chosen and the rejected
    one.

    Raises DataError, naming row and keys, for a missing key or a cell that cannot be trained on.
    """
    return SCHEMAS[spec.schema](DatasetRecord(record, spec, row), tokenizer, max_model_len)
