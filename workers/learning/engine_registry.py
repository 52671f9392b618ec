"""The table of trainer engines. Third parties add one through the entry-point group `rftd.trainer_engines`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.extras import check_extra
from rftd.ops.plugins import Plugins, parsed
from rftd.ops.processors import threads_of
from rftd.streams.spec.engines import OWNERS, ReachSpec
from rftd.streams.spec.spec import StageSpec, TrainerSpec
from rftd.workers.devices.device_memory import EngineMemory, Need, shown, terms_of
from rftd.workers.devices.host import Host
from rftd.workers.learning.engine_definition import TrainerEngineDefinition, TrainerOpening
from rftd.workers.learning.losses.demands import Demand, demands_of
from rftd.workers.learning.memory_needs import FIX, RANK_PROCESS

if TYPE_CHECKING:
    from rftd.workers.learning.engine import TrainerEngine

_HERE: Final = "rftd.workers.engines"
_FIELD: Final = "trainer.engine_args"

ENGINES: Final = Plugins[TrainerEngineDefinition[Any]](
    "trainer engine",
    group="rftd.trainer_engines",
    table={
        "torch": f"{_HERE}.torch.trainer.definition:ENGINE",
        "verl": f"{_HERE}.verl.definition:ENGINE",
        "tinker": f"{_HERE}.tinker.trainer.definition:ENGINE",
        "fake": f"{_HERE}.fake.trainer:ENGINE",
    },
)
"""The engines by `trainer_type`. A line leads to a definition, whose module imports the engine only to make it."""


def lookup(name: str) -> TrainerEngineDefinition[Any]:
    """The engine by name. Raises ConfigError for an unknown name, with the nearest known one."""
    # load, not open: a definition takes no arguments. A third party may have named anything, so its type is checked.
    definition = ENGINES.load(name)
    if not isinstance(definition, TrainerEngineDefinition):
        raise ConfigError(
            f"entry point {name!r} of the group {ENGINES.group!r} is a {type(definition).__name__}",
            fix="let it name an rftd.workers.api.TrainerEngineDefinition",
        )
    return definition


def arguments_of(name: str) -> type[msgspec.Struct] | None:
    """The struct of a built-in engine's `trainer.engine_args`; None for third parties' engines, never imported."""
    return lookup(name).arguments if ENGINES.builtin(name) else None


def opened_with(name: str) -> tuple[str, ...]:
    """The names of a built-in engine's arguments fixed at opening for every stage; empty for third parties' engines."""
    return lookup(name).opened_with if ENGINES.builtin(name) else ()


def check_engine(spec: TrainerSpec) -> None:
    """Raises ConfigError for an uninstalled engine and for arguments unfit for the engine."""
    _arguments(lookup(spec.engine), spec)


def unmet(stage: StageSpec) -> list[tuple[Demand, str]]:
    """The parts needed by the stage's objective and lacking in its engine, with the engine's reasons.

    Raises ConfigError for uninstalled parts.
    """
    lacks = lookup(stage.trainer.engine).lacks
    return [(demand, lacks[demand.part]) for demand in demands_of(stage, lacks) if demand.part in lacks]


def check_objective(stage: StageSpec) -> None:
    """Raises ConfigError, naming the demanding argument, for an objective beyond the engine."""
    for demand, why in unmet(stage):
        raise ConfigError(
            f"{demand.words}, and the engine {stage.trainer.engine} has none: {why}",
            field=".".join(demand.field),
            fix=demand.fix,
        )


def check_room(stage: StageSpec, host: Host) -> None:
    """Raises ConfigError, with the arithmetic, for a stage with needs above the devices' whole memory.

    What others take of it meanwhile is the engine's to see, when it opens. On a host that nobody has looked at, and
    while a node of a cluster has not said its memory, nothing is known.
    """
    memory = _memory(lookup(stage.trainer.engine).needs, stage, host)
    if memory is None:
        return
    gpus = stage.trainer.devices
    ranks = ranks_of(stage)
    device, needs = memory
    held_bytes = memory.size_bytes * ranks_on_device(stage)
    if held_bytes <= device.memory_bytes:
        return
    per_rank = ""
    if ranks > 1:
        per_rank = f" on each of {gpus} GPUs" if gpus else f", {shown(memory.size_bytes)} by each of {ranks} ranks"
    raise ConfigError(
        f"{shown(held_bytes)} are needed at least{per_rank} ({terms_of(needs)}), and {device.name} has "
        f"{shown(device.memory_bytes)}",
        field="model.model_path",
        fix=FIX.removeprefix("free memory there, or "),
    )


def memory_of(stage: StageSpec, host: Host) -> EngineMemory | None:
    """The forecast of the peak memory of one rank of the stage's trainer; None without a forecast."""
    return _memory(lookup(stage.trainer.engine).forecast, stage, host)


def ranks_of(stage: StageSpec) -> int:
    """The number of trainer processes of the stage."""
    return stage.trainer.devices or max(1, stage.trainer.engine_args.get("ranks", 0))


def ranks_on_device(stage: StageSpec) -> int:
    """The number of trainer processes on one device: one on a GPU, all of them on a CPU."""
    return 1 if stage.trainer.devices else ranks_of(stage)


def _memory(
    needs_of: Callable[[StageSpec, Path, int], list[Need]] | None, stage: StageSpec, host: Host
) -> EngineMemory | None:
    gpus = stage.trainer.devices
    if needs_of is None or stage.kind == "explore" or not host.seen or (host.gpus and not gpus):
        return None
    devices = host.gpus if gpus else host.devices
    if host.clustered and not all(device.memory_bytes for device in devices):
        return None
    device = max(devices, key=lambda each: each.memory_bytes, default=None)
    ranks = ranks_of(stage)
    try:
        needs = needs_of(stage, Path(stage.model.path), ranks)
    except ConfigError:  # a part that is not here: its worker may have it, and says so if not
        return None
    if ranks > 1 and not gpus:
        needs = [*needs, RANK_PROCESS]
    return None if device is None or not device.memory_bytes else EngineMemory(device, tuple(needs))


def check_models(stage: StageSpec) -> None:
    """Raises ConfigError for a model of the stage unfit for its engine's arguments."""
    trains = lookup(stage.trainer.engine).trains
    if trains is None or stage.kind == "explore":
        return
    for folder in (stage.model.path, stage.trainer.critic_path, stage.trainer.teacher_path):
        if folder:
            trains(stage, Path(folder))


def make_engine(spec: TrainerSpec, reach: ReachSpec = OWNERS) -> TrainerEngine:
    """The stage's trainer engine, unopened; `reach` is the experiment's. Raises ConfigError, NotInstalledError."""
    engine = lookup(spec.engine)
    if engine.extra:
        check_extra(engine.extra, f"the {spec.engine} engine")
    return engine.make(
        TrainerOpening(trainer=spec, arguments=_arguments(engine, spec), threads=threads_of(spec.threads), reach=reach)
    )


def _arguments(engine: TrainerEngineDefinition[Any], spec: TrainerSpec) -> msgspec.Struct:
    taker = f"the {spec.engine} engine"
    kind: type[msgspec.Struct] = engine.arguments
    return parsed(spec.engine_args, kind, taker=taker, field=_FIELD, beside=("threads", "dtype"))
