"""The Tinker rollout engine for the registry, importable without the package."""

from __future__ import annotations

import os
from typing import Final

from rftd.ops.errors import ConfigError
from rftd.ops.extras import TORCH
from rftd.workers.engines.tinker.access import VARIABLES, Access
from rftd.workers.engines.tinker.rollout.arguments import TinkerArgs
from rftd.workers.generation.engine import RolloutEngine
from rftd.workers.generation.engine_definition import EngineOpening, RolloutEngineDefinition


async def _open(opening: EngineOpening[TinkerArgs]) -> RolloutEngine:
    """Opens the engine for an explorer. Raises ConfigError for a deterministic experiment, or without a key."""
    if opening.deterministic:
        raise ConfigError(
            "the Tinker service does not guarantee equal bits, and the experiment is deterministic",
            field="deterministic",
            fix="leave deterministic out, or generate with torch",
        )
    from rftd.workers.engines.tinker.rollout.engine import TinkerRolloutEngine
    from rftd.workers.engines.tinker.sdk import connect

    access = Access.of(opening.arguments.base_url, os.environ, opening.reach)
    return TinkerRolloutEngine(connect(access), opening.model, access.place)


ENGINE: Final = RolloutEngineDefinition(arguments=TinkerArgs, open=_open, extra=TORCH, environment=VARIABLES)
"""Definition of the engine for the registry."""
