"""The table of rollout engines. Third parties add one through the entry-point group `rftd.rollout_engines`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.extras import check_extra
from rftd.ops.plugin_arguments import parsed
from rftd.ops.plugins import Plugins
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
_FIELD: Final = "explorer.rollout_model.extra_engine_args"

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
"""The engines by `engine_type`. A line leads to a definition, whose module imports the engine only to open it."""


def lookup(name: str) -> RolloutEngineDefinition[Any]:
    """The engine of that name. Raises ConfigError, with the nearest name, if there is none."""
    # load, not open: a definition takes no arguments. A third party may have named anything, so its type is checked.
    found = ENGINES.load(name)
    if not isinstance(found, RolloutEngineDefinition):
        raise ConfigError(
            f"entry point {name!r} of the group {ENGINES.group!r} is a {type(found).__name__}",
            fix="let it name an rftd.workers.api.RolloutEngineDefinition",
        )
    return found


def arguments_of(name: str) -> type[msgspec.Struct] | None:
    """The arguments below `extra_engine_args` of one of ours; None for others, which are not imported.

    An explorer opens its engine once, so all of them hold for every stage.
    """
    return lookup(name).arguments if ENGINES.builtin(name) else None


def check_engine(rollout: RolloutSpec) -> None:
    """Raises ConfigError for an engine that is not installed here, or that does not take its arguments."""
    _arguments(lookup(rollout.engine), rollout)


def checks_of(stage: StageSpec, host: Host, *, deterministic: bool = False) -> Iterator[Callable[[], None]]:
    """The checks of the stage's engine that its model and its devices can be held against before it is opened.

    Each raises what it finds. There are none of an engine, or for arguments, that `check_engine` refuses.
    """
    found = _planned(stage, host, deterministic, stage.rollout.concurrency)
    if found is None:
        return
    engine, plan = found
    for check in engine.checks:
        yield partial(check, plan)


def memory_of(stage: StageSpec, host: Host, *, deterministic: bool = False, slots: int = 0) -> EngineMemory | None:
    """The memory that the stage's engine takes of a device for `slots` requests (0: as many as rollouts), if known."""
    found = _planned(stage, host, deterministic, slots or stage.rollout.concurrency)
    if found is None:
        return None
    engine, plan = found
    return engine.memory(plan)


def _planned(
    stage: StageSpec, host: Host, deterministic: bool, slots: int
) -> tuple[RolloutEngineDefinition[Any], EnginePlan[Any]] | None:
    rollout = stage.rollout
    try:
        engine = lookup(rollout.engine)
        arguments = _arguments(engine, rollout)
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
    """The stage's rollout engine, with room for `slots` requests at once and no weights yet.

    `gpus` are the numbers of the process's GPUs that it computes on; empty: it sees all of them. Raises ConfigError,
    NotInstalledError, and what its definition's `open` raises.
    """
    rollout = stage.rollout
    engine = lookup(rollout.engine)
    if engine.extra:
        check_extra(engine.extra, f"the {rollout.engine} engine")
    opening = EngineOpening(
        model=stage.model,
        rollout=rollout,
        arguments=_arguments(engine, rollout),
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


def _arguments(engine: RolloutEngineDefinition[Any], rollout: RolloutSpec) -> msgspec.Struct:
    taker = f"the {rollout.engine} engine"
    kind: type[msgspec.Struct] = engine.arguments
    return parsed(rollout.engine_args, kind, taker=taker, field=_FIELD, beside=("threads",))


def _tasksets(experiment: ExperimentSpec) -> Iterator[TasksetSpec]:
    """The tasksets of every stage: the engine is opened once for all of them."""
    for stage in experiment.stages:
        yield from stage.evals
        yield from tasksets_of(stage)
