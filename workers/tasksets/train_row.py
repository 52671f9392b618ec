"""One row of a dataset as the trainer sees it: token ids and which of them to learn."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.streams.spec import TasksetSpec
from rftd.workers.chat.message import Message
from rftd.workers.chat.tokenizer import Tokenizer
from rftd.workers.tasksets.task import Record


class TrainRow(msgspec.Struct, frozen=True, kw_only=True):
    """T tokens, of which the first P are the prompt; R = T - P, at least one."""

    tokens: NDArray[np.uint32]  # [T]
    prompt_tokens: int
    loss_mask: NDArray[np.uint8]  # [R]
    cut: str = ""
    """`response` if its end did not fit; `prompt` if not even the prompt did: then nothing of the row is learned."""


def make_train_row(
    record: dict[str, Any], *, spec: TasksetSpec, row: int, tokenizer: Tokenizer, max_model_len: int
) -> TrainRow:
    """The tokens of a record, at most `max_model_len` of them.

    `plaintext`: prompt and response as they stand, then the end-of-sequence id. `messages`: everything before the last
    message, opened for the assistant by the chat template, is the prompt; the rest is the response. A response that
    does not fit loses its end. A prompt that leaves no room keeps its beginning and one response token with loss mask
    0: a plan that names the row can be executed, and one long row does not end an experiment. Raises DataError if a
    key is missing or the messages do not end with the assistant.
    """
    reader = Record(record, spec, row)
    if spec.format.prompt_type == "plaintext":
        prompt, response = _plaintext(reader, spec, tokenizer)
    else:
        prompt, response = _chat(reader, spec, tokenizer)
    if not prompt or not response:
        raise reader.error(f"has an empty {'prompt' if not prompt else 'response'}")
    cut = ""
    if len(prompt) >= max_model_len:
        prompt, response, cut = prompt[: max_model_len - 1], response[:1], "prompt"
    elif len(prompt) + len(response) > max_model_len:
        response, cut = response[: max_model_len - len(prompt)], "response"
    return TrainRow(
        tokens=np.array(prompt + response, dtype=np.uint32),
        prompt_tokens=len(prompt),
        loss_mask=np.full(len(response), 0 if cut == "prompt" else 1, dtype=np.uint8),
        cut=cut,
    )


def plain_prompt(prompt: str, *, system_prompt: str | None, reply_prefix: str | None) -> str:
    """The bare text to continue: the system prompt on lines of its own, the prompt, the beginning of the reply."""
    return (f"{system_prompt}\n" if system_prompt else "") + prompt + (reply_prefix or "")


def _plaintext(reader: Record, spec: TasksetSpec, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    form = spec.format
    # The same text, encoded in the same two parts, as a rollout of this prompt has.
    prompt = plain_prompt(
        reader.text(form.prompt_key), system_prompt=reader.system_prompt(), reply_prefix=form.reply_prefix
    )
    response = reader.text(form.response_key).removeprefix(form.reply_prefix or "")
    return tokenizer.encode(prompt, special=True), tokenizer.encode(response) + list(tokenizer.eos_ids[:1])


def _chat(reader: Record, spec: TasksetSpec, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    messages = reader.messages(spec.format.messages_key)
    if len(messages) < 2 or messages[-1].role != "assistant":
        raise reader.error("has messages that are not a prompt and then an answer of the assistant")
    system_prompt = reader.system_prompt()
    if system_prompt and messages[0].role != "system":
        messages = (Message("system", system_prompt), *messages)
    whole = tokenizer.chat_text(messages, generation_prompt=False)
    prompt = tokenizer.chat_text(messages[:-1], generation_prompt=True)
    if not whole.startswith(prompt):
        # Some templates open the assistant's turn with more than they write for one that is complete (`<think>`).
        closed = tokenizer.chat_text(messages[:-1], generation_prompt=False)
        prompt = _common_start(prompt, whole)
        if not prompt.startswith(closed):
            raise reader.error("has messages of which the chat template rewrites the beginning when it sees the end")
    response = tokenizer.encode(whole[len(prompt) :])
    # Templates write a line break after the end of sequence; a rollout ends there, so learning does too.
    ends = [place for place, token in enumerate(response) if token in tokenizer.eos_ids]
    return tokenizer.encode(prompt), response[: ends[-1] + 1] if ends else [*response, *tokenizer.eos_ids[:1]]


def _common_start(left: str, right: str) -> str:
    same = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        same += 1
    return left[:same]
