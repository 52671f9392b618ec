"""`Response`: an answer of the model, with everything needed to train on the answer."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.streams.events.experience import SamplingSpan, Span

PROMPT_TRUNCATED: Final = "prompt_truncated"
"""Finish reason of a prompt too long for the model."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The model's answer to one prompt: text, ids, log-probabilities and weight versions."""

    text: str
    """The answer's text, without special tokens."""
    prompt: tuple[int, ...]
    """Prompt ids seen by the engine  # [P]"""
    tokens: tuple[int, ...]
    """Ids drawn by the engine  # [R]"""
    logprobs: tuple[float, ...]  # [R]
    """Log-probability of each token at the request's temperature  # [R]"""
    processed_logprobs: tuple[float, ...] = ()
    """Log-probabilities in the distributions behind the draws; empty unless requested  # [R]"""
    spans: tuple[Span, ...]
    """Weight versions of `tokens`."""
    finish: str
    """`stop`, `length`, or `prompt_truncated`: the prompt was too long and nothing was generated."""
    sampling: tuple[SamplingSpan, ...] = ()
    """Sampling settings of `tokens`; empty where nothing was generated."""

    @property
    def truncated(self) -> bool:
        """True if the prompt was too long: the rollout then has reward 0 and trains nothing."""
        return self.finish == PROMPT_TRUNCATED
