"""Model, prompt and response lengths, from those that were given."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.model import Model


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """In tokens; prompt and response together fit into the model."""

    model: int
    prompt: int
    response: int
    min_response: int


def derive_lengths(model: Model, notes: Notes) -> LengthLimits | None:
    """The lengths, or None after saying why there are none."""
    total = model.max_model_len
    prompt = model.max_prompt_tokens
    response = model.max_response_tokens
    if total is None:
        if prompt is None or response is None:
            fix = "set max_model_len, or both max_prompt_tokens and max_response_tokens"
            notes.wrong(("model", "max_model_len"), "cannot be derived", fix)
            return None
        total = prompt + response
    elif prompt is not None and response is not None:
        if prompt + response > total:
            what = f"is {total}, less than max_prompt_tokens + max_response_tokens = {prompt} + {response}"
            notes.wrong(("model", "max_model_len"), what, f"set it to {prompt + response}, or lower one of the two")
            return None
    elif total < 2:
        notes.wrong(("model", "max_model_len"), "must leave room for a prompt and a response: at least 2")
        return None
    elif prompt is None and response is None:
        prompt = total // 2
    if prompt is None:
        assert response is not None
        response = _clip("max_response_tokens", response, total, notes)
        prompt = total - response
    if response is None:
        prompt = _clip("max_prompt_tokens", prompt, total, notes)
        response = total - prompt
    shortest = model.min_response_tokens
    if shortest >= response:
        notes.warn(f"model.min_response_tokens {shortest} is not below max_response_tokens: {response - 1} is used")
        shortest = response - 1
    return LengthLimits(total, prompt, response, shortest)


def _clip(name: str, given: int, total: int, notes: Notes) -> int:
    if given < total:
        return given
    notes.warn(f"model.{name} {given} does not fit into max_model_len {total}: {total - 1} is used")
    return total - 1
