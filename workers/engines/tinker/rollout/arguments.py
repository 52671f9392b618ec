"""The Tinker rollout engine's arguments, what it cannot draw, and how it is opened; known without the package."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.extras import TORCH
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.engines.tinker.access import Access
from rftd.workers.generation.engine import RolloutEngine, Sampling
from rftd.workers.generation.engine_definition import EngineOpening, RolloutEngineDefinition

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


async def _open(opening: EngineOpening[TinkerArgs]) -> RolloutEngine:
    if opening.deterministic:
        raise ConfigError(
            "the Tinker service promises no equal bits, and the experiment is deterministic",
            field="deterministic",
            fix="leave deterministic out, or generate with torch",
        )
    from rftd.workers.engines.tinker.rollout.engine import TinkerRolloutEngine
    from rftd.workers.engines.tinker.sdk import connect

    access = Access.of(opening.arguments.base_url, os.environ, opening.reach)
    return TinkerRolloutEngine(connect(access), opening.model, access.place)


ENGINE: Final = RolloutEngineDefinition(arguments=TinkerArgs, open=_open, extra=TORCH)
