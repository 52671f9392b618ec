"""The table of rollout engines. Third parties add one through the entry-point group `rftd.rollout_engines`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.extras import check_extra
from rftd.ops.plugins import Plugins, parsed
from rftd.ops.processors import threads_of
from rftd.streams.spec.spec import ExperimentSpec, RolloutSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.devices.device_memory import EngineMemory
from rftd.workers.devices.host import Host
from rftd.workers.generation.engine_definition import EngineOpening, EnginePlan, RolloutEngineDefinition

if TYPE_CHECKING:
    from rftd.ops.clock import Clock
    from rftd.workers.generation.engine import RolloutEngine

_HERE: Final = "rftd.workers.engines"
"""Package of the built-in engines."""
_FIELD: Final = "explorer.rollout_model.extra_engine_args"
"""Field of the engine's arguments."""

ENGINES: Final = Plugins[RolloutEngineDefinition[Any]](
    "rollout engine",
    group="rftd.rollout_engines",
    table={
        "torch": f"{_HERE}.torch.rollout.arguments:ENGINE",
        "vllm": f"{_HERE}.vllm.arguments:ENGINE",
        "tinker": f"{_HERE}.tinker.rollout.definition:ENGINE",
        "external": f"{_HERE}.external:ENGINE",
        "fake": f"{_HERE}.fake.rollout:ENGINE",
    },
)
"""The engines by `engine_type`. An entry names a definition; its module imports the engine only to open it."""


def lookup(name: str) -> RolloutEngineDefinition[Any]:
    """Returns the engine's definition. Raises ConfigError, with the nearest name, for an unknown name."""
    return ENGINES.definition(name, RolloutEngineDefinition, "rftd.workers.api.RolloutEngineDefinition")


def arguments_of(name: str) -> type[msgspec.Struct] | None:
    """Returns the struct of a built-in engine's `extra_engine_args`; None for a third-party engine, which is not
    imported.

    An explorer opens its engine once, so the arguments hold for every stage.
    """
    return lookup(name).arguments if ENGINES.builtin(name) else None


def check_engine(rollout: RolloutSpec) -> None:
    """Raises ConfigError if the engine is not installed here, or its arguments are invalid."""
    _checked_arguments(lookup(rollout.engine), rollout)


def checks_of(stage: StageSpec, host: Host, *, deterministic: bool = False) -> Iterator[Callable[[], None]]:
    """Yields the checks of the stage's engine against its model and devices, to be called before the engine is opened.

    Each check raises its finding. Nothing is yielded for an engine, or for arguments, refused by `check_engine`.
    """
    planned = _plan_of(stage, host, deterministic, stage.rollout.concurrency)
    if planned is None:
        return
    engine, plan = planned
    for check in engine.checks:
        yield partial(check, plan)


def memory_of(stage: StageSpec, host: Host, *, deterministic: bool = False, slots: int = 0) -> EngineMemory | None:
    """Returns the device memory needed by the stage's engine for `slots` requests (0: one for each rollout); None:
    unknown.
    """
    planned = _plan_of(stage, host, deterministic, slots or stage.rollout.concurrency)
    if planned is None:
        return None
    engine, plan = planned
    return engine.memory(plan)


def _plan_of(
    stage: StageSpec, host: Host, deterministic: bool, slots: int
) -> tuple[RolloutEngineDefinition[Any], EnginePlan[Any]] | None:
    """Returns the stage's engine with its plan; None for an unknown engine or invalid arguments."""
    rollout = stage.rollout
    try:
        engine = lookup(rollout.engine)
        arguments = _checked_arguments(engine, rollout)
    except ConfigError:
        return None
    plan = EnginePlan(
        model=stage.model,
        rollout=rollout,
        arguments=arguments,
        slots=slots,
        host=host,
        deterministic=deterministic,
    )
    return engine, plan


async def open_engine(
    experiment: ExperimentSpec, stage: StageSpec, *, slots: int, clock: Clock, gpus: range = range(0)
) -> RolloutEngine:
    """Opens the stage's rollout engine, with room for `slots` requests at once and no weights yet.

    `gpus` are indices among the process's GPUs to compute on; empty: all of them. Raises ConfigError,
    NotInstalledError, and the errors of the definition's `open`.
    """
    rollout = stage.rollout
    engine = lookup(rollout.engine)
    if engine.extra:
        check_extra(engine.extra, f"the {rollout.engine} engine")
    opening = EngineOpening(
        model=stage.model,
        rollout=rollout,
        arguments=_checked_arguments(engine, rollout),
        slots=slots,
        gpus=gpus,
        threads=threads_of(rollout.threads),
        clock=clock,
        folder=Path(experiment.job_dir) / "engines" / rollout.engine,
        seed=experiment.seed,
        deterministic=experiment.deterministic,
        biased=tuple(sorted({token for taskset in _tasksets(experiment) for token, _ in taskset.sampling.logit_bias})),
        reach=experiment.reach,
    )
    return await engine.open(opening)


def _checked_arguments(engine: RolloutEngineDefinition[Any], rollout: RolloutSpec) -> msgspec.Struct:
    """Returns the checked arguments of the stage's engine. Raises ConfigError."""
    taker = f"the {rollout.engine} engine"
    kind: type[msgspec.Struct] = engine.arguments
    return parsed(rollout.engine_args, kind, taker=taker, field=_FIELD, beside=("threads",))


def _tasksets(experiment: ExperimentSpec) -> Iterator[TasksetSpec]:
    """Yields the tasksets of every stage: the engine is opened once for all of them."""
    for stage in experiment.stages:
        yield from stage.evals
        yield from tasksets_of(stage)
