"""The rollout engines by name, their arguments, and the opening of one for a stage. An engine is imported only then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError
from rftd.ops.processors import threads_of
from rftd.streams.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.workers.devices.compute_device import DeviceName, compute_device
from rftd.workers.rollout.engine import RolloutEngine

ENGINES: Final = ("torch", "fake")
_DEVICE: Final = "explorer.rollout_model.extra_engine_args.device"


class TorchRolloutArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments below `explorer.rollout_model.extra_engine_args`, beside `threads`."""

    device: DeviceName = "auto"
    """`auto`: cuda if there is one and the experiment is not deterministic. Weights, cache and drawing are there."""
    cuda_graphs: bool = True
    """Decode steps on a GPU are recorded once and repeated, where the model's allow it. On a CPU it changes nothing."""


def parse_torch(arguments: Mapping[str, Any]) -> TorchRolloutArgs:
    """The arguments, checked. Raises ConfigError."""
    try:
        return converted(dict(arguments), TorchRolloutArgs)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the torch engine does not take {dict(arguments)!r}: {error}",
            field="explorer.rollout_model.extra_engine_args",
            fix=f"use {', '.join((*TorchRolloutArgs.__struct_fields__, 'threads'))}",
        ) from error


def arguments_of(engine: str) -> type[msgspec.Struct] | None:
    """The arguments below `extra_engine_args`; None for an engine that is not here. Imports no torch.

    An explorer opens its engine once, so all of them hold for every stage.
    """
    if engine == "fake":
        from rftd.workers.rollout.engines.fake import FakeArgs

        return FakeArgs
    if engine == "torch":
        return TorchRolloutArgs
    return None


async def open_engine(experiment: ExperimentSpec, stage: StageSpec, *, slots: int, clock: Clock) -> RolloutEngine:
    """The stage's rollout engine, with room for `slots` requests at once and no weights yet. Raises ConfigError."""
    rollout = stage.rollout
    if rollout.engine == "fake":
        from rftd.workers.rollout.engines.fake import FakeRolloutEngine

        return await FakeRolloutEngine.open(rollout.engine_args, clock)
    if rollout.engine == "torch":
        from rftd.workers.rollout.engines.torch.engine import TorchRolloutEngine

        arguments = parse_torch(rollout.engine_args)
        device = compute_device(arguments.device, deterministic=experiment.deterministic, field=_DEVICE)
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
    """The tasksets of every stage: the engine is opened once for all of them."""
    for stage in experiment.stages:
        yield from stage.evals
        if stage.taskset is not None:
            yield stage.taskset
