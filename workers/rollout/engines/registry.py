"""The table of rollout engines, and how one is opened for a stage. Imports an engine only when it is asked for."""

from __future__ import annotations

from typing import Final

from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError
from rftd.ops.processors import threads_of
from rftd.streams.spec import ExperimentSpec, StageSpec
from rftd.workers.rollout.engine import RolloutEngine

ENGINES: Final = ("torch", "fake")


async def open_engine(experiment: ExperimentSpec, stage: StageSpec, *, slots: int, clock: Clock) -> RolloutEngine:
    """The stage's rollout engine, with room for `slots` requests at once and no weights yet. Raises ConfigError."""
    rollout = stage.rollout
    if rollout.engine == "fake":
        from rftd.workers.rollout.engines.fake import FakeRolloutEngine

        return await FakeRolloutEngine.open(rollout.engine_args, clock)
    if rollout.engine == "torch":
        from rftd.workers.rollout.engines.torch.engine import TorchRolloutEngine

        return await TorchRolloutEngine.open(
            stage.model.path,
            slots=slots,
            max_model_len=stage.model.max_model_len,
            dtype=rollout.dtype,
            threads=threads_of(rollout.threads),
            clock=clock,
            deterministic=experiment.deterministic,
        )
    raise ConfigError(f"no rollout engine {rollout.engine!r}", fix=f"one of {', '.join(ENGINES)}")
