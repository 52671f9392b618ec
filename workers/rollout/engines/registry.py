"""The table of rollout engines, and how one is opened for a stage. Imports an engine only when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError
from rftd.ops.processors import threads_of
from rftd.streams.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.workers.rollout.engine import RolloutEngine

ENGINES: Final = ("torch", "fake")


def arguments_of(engine: str) -> type[msgspec.Struct] | None:
    """The arguments below `extra_engine_args`; None for an engine that is not here. Imports no torch.

    An explorer opens its engine once, so all of them hold for every stage.
    """
    if engine == "fake":
        from rftd.workers.rollout.engines.fake import FakeArgs

        return FakeArgs
    if engine == "torch":
        from rftd.workers.rollout.engines.torch.arguments import TorchRolloutArgs

        return TorchRolloutArgs
    return None


async def open_engine(experiment: ExperimentSpec, stage: StageSpec, *, slots: int, clock: Clock) -> RolloutEngine:
    """The stage's rollout engine, with room for `slots` requests at once and no weights yet. Raises ConfigError."""
    rollout = stage.rollout
    if rollout.engine == "fake":
        from rftd.workers.rollout.engines.fake import FakeRolloutEngine

        return await FakeRolloutEngine.open(rollout.engine_args, clock)
    if rollout.engine == "torch":
        from rftd.workers.devices.compute_device import compute_device
        from rftd.workers.rollout.engines.torch.arguments import DEVICE, parse
        from rftd.workers.rollout.engines.torch.engine import TorchRolloutEngine

        arguments = parse(rollout.engine_args)
        device = compute_device(arguments.device, deterministic=experiment.deterministic, field=DEVICE)
        return await TorchRolloutEngine.open(
            stage.model.path,
            slots=slots,
            max_model_len=stage.model.max_model_len,
            dtype=rollout.dtype,
            device=device,
            threads=threads_of(rollout.threads),
            clock=clock,
            deterministic=experiment.deterministic,
            cuda_graphs=arguments.cuda_graphs,
            trust_remote_code=stage.model.trust_remote_code,
            biased=sorted({token for taskset in _tasksets(experiment) for token, _ in taskset.sampling.logit_bias}),
        )
    raise ConfigError(f"no rollout engine {rollout.engine!r}", fix=f"one of {', '.join(ENGINES)}")


def _tasksets(experiment: ExperimentSpec) -> Iterator[TasksetSpec]:
    """Those of every stage, for all of which the engine is opened once."""
    for stage in experiment.stages:
        yield from stage.evals
        if stage.taskset is not None:
            yield stage.taskset
