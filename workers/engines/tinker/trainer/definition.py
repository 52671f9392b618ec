"""The Tinker trainer engine for the registry, importable without the package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from rftd.ops.extras import TORCH
from rftd.workers.engines.tinker.access import VARIABLES, Access
from rftd.workers.engines.tinker.trainer.arguments import LACKS, TinkerTrainerArgs
from rftd.workers.learning.engine_definition import TrainerEngineDefinition, TrainerOpening

if TYPE_CHECKING:
    from rftd.workers.learning.engine import TrainerEngine


def _make(opening: TrainerOpening[TinkerTrainerArgs]) -> TrainerEngine:
    """Makes the engine; the service is connected when the engine is opened."""
    from rftd.workers.engines.tinker.sdk import connect
    from rftd.workers.engines.tinker.trainer.engine import TinkerTrainerEngine

    base_url = opening.arguments.base_url
    return TinkerTrainerEngine(opening.arguments, lambda: connect(Access.of(base_url, os.environ, opening.reach)))


ENGINE: Final = TrainerEngineDefinition(
    arguments=TinkerTrainerArgs,
    make=_make,
    extra=TORCH,
    environment=VARIABLES,
    opened_with=TinkerTrainerArgs.__struct_fields__,
    lacks=LACKS,
)
"""Definition of the engine for the registry."""
