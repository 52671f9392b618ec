"""The Tinker rollout engine's arguments, and what it cannot draw; known without the package."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.generation.engine import Sampling

_NEUTRAL: Final[dict[str, object]] = {
    "min_tokens": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "logit_bias": (),
    "ignore_eos": False,
    "processed_logprobs": False,
}
"""The settings that the service does not have, with the values at which they change nothing."""


class TinkerArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of `model.tinker` that concern rollouts."""

    base_url: str = ""
    """The service's address; empty: its own."""


def undrawable(sampling: Sampling | SamplingSpec) -> list[str]:
    """The settings that ask for what the service cannot do."""
    return [name for name, neutral in _NEUTRAL.items() if getattr(sampling, name) != neutral]
