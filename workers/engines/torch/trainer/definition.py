"""The torch trainer engine's entry in the registry; importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rftd.ops.extras import TORCH
from rftd.workers.engines.torch.trainer.arguments import OPENED_WITH, TorchTrainerArgs
from rftd.workers.learning.engine_definition import TrainerEngineDefinition, TrainerOpening
from rftd.workers.learning.memory_needs import held_need, training_forecast, training_needs

if TYPE_CHECKING:
    from rftd.workers.engines.ranks.messages import RankPlace
    from rftd.workers.learning.engine import TrainerEngine


def make_rank(place: RankPlace) -> TrainerEngine:
    """Constructs the engine of one rank."""
    from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine

    return TorchTrainerEngine(threads=place.threads)


def _make(opening: TrainerOpening[TorchTrainerArgs]) -> TrainerEngine:
    """Makes the engine in the trainer process, or an engine of several ranks if `ranks` is set."""
    arguments = opening.arguments
    if arguments.ranks:
        from rftd.workers.engines.ranks.controller import RankedEngine, RankPlan

        return RankedEngine(
            RankPlan(
                maker=f"{__name__}:{make_rank.__name__}",
                ranks=arguments.ranks,
                trainer=opening.trainer,
                threads=opening.threads,
                backend="nccl" if arguments.device == "cuda" else "gloo",
                timeout_s=arguments.rank_timeout_s,
            )
        )
    from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine

    return TorchTrainerEngine(threads=opening.threads)


ENGINE: Final = TrainerEngineDefinition(
    arguments=TorchTrainerArgs,
    make=_make,
    extra=TORCH,
    opened_with=OPENED_WITH,
    # Each rank has everything.
    needs=lambda stage, base, _devices: [*training_needs(stage, base), held_need(stage, base)],
    forecast=lambda stage, base, _devices: [*training_forecast(stage, base), held_need(stage, base)],
)
"""Definition of the trainer engine `torch`."""
