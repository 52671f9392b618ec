"""The Tinker rollout engine's arguments and unsupported settings, importable without the package."""

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
"""Settings unsupported by the service, with the values that have no effect."""


class TinkerArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `model.tinker` for rollouts."""

    base_url: str = ""
    """Address of the service; empty: the default address."""


def undrawable(sampling: Sampling | SamplingSpec) -> list[str]:
    """Returns the names of sampling settings that the service does not support and that differ from their neutral
    values.
    """
    return [name for name, neutral in _NEUTRAL.items() if getattr(sampling, name) != neutral]
