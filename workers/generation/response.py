"""`Response`: an answer of the model, with everything that training on it needs."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.streams.events.experience import SamplingSpan, Span

PROMPT_TRUNCATED: Final = "prompt_truncated"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The model's answer to one prompt."""

    text: str
    """Without special tokens."""
    prompt: tuple[int, ...]
    """The ids that the engine saw  # [P]"""
    tokens: tuple[int, ...]
    """The ids that it drew  # [R]"""
    logprobs: tuple[float, ...]  # [R]
    processed_logprobs: tuple[float, ...] = ()
    """Log-probabilities in the distributions that drew the tokens; empty unless asked for  # [R]"""
    spans: tuple[Span, ...]
    """The weights that drew `tokens`."""
    finish: str
    """`stop`, `length`, or `prompt_truncated`: the prompt did not fit, nothing was generated."""
    sampling: tuple[SamplingSpan, ...] = ()
    """The settings that `tokens` were drawn with; none where nothing was generated."""

    @property
    def truncated(self) -> bool:
        """True if the prompt did not fit: such a rollout has reward 0 and trains nothing."""
        return self.finish == PROMPT_TRUNCATED
