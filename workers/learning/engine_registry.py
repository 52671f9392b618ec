"""The table of trainer engines. Third parties add engines by the entry-point group `rftd.trainer_engines`."""

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

_PACKAGE: Final = "rftd.workers.engines"
"""Package of the built-in engines."""
_FIELD: Final = "trainer.engine_args"
"""Field of the engine's arguments."""

ENGINES: Final = Plugins[TrainerEngineDefinition[Any]](
    "trainer engine",
    group="rftd.trainer_engines",
    table={
        "torch": f"{_PACKAGE}.torch.trainer.definition:ENGINE",
        "verl": f"{_PACKAGE}.verl.definition:ENGINE",
        "tinker": f"{_PACKAGE}.tinker.trainer.definition:ENGINE",
        "fake": f"{_PACKAGE}.fake.trainer:ENGINE",
    },
)
"""The engines by `trainer_type`. Each line names a definition, whose module imports the engine only to construct it."""


def lookup(name: str) -> TrainerEngineDefinition[Any]:
    """Returns the engine's definition. Raises ConfigError for an unknown name, with the nearest known one."""
    return ENGINES.definition(name, TrainerEngineDefinition, "rftd.workers.api.TrainerEngineDefinition")


def arguments_of(name: str) -> type[msgspec.Struct] | None:
    """Returns the struct of a built-in engine's `trainer.engine_args`; None for a third party's engine, which is not
    imported.
    """
    return lookup(name).arguments if ENGINES.builtin(name) else None


def opened_with(name: str) -> tuple[str, ...]:
    """Returns the names of a built-in engine's arguments fixed at `open` for all stages; empty for a third party's
    engine.
    """
    return lookup(name).opened_with if ENGINES.builtin(name) else ()


def check_engine(spec: TrainerSpec) -> None:
    """Raises ConfigError for an engine that is not installed, or for unfit arguments of the engine."""
    _arguments(lookup(spec.engine), spec)


def unmet(stage: StageSpec) -> list[tuple[Demand, str]]:
    """Returns the capabilities that the stage's objective needs and its engine lacks, each with the engine's reason.

    Raises ConfigError for a loss or advantage that is not installed.
    """
    lacks = lookup(stage.trainer.engine).lacks
    return [(demand, lacks[demand.part]) for demand in demands_of(stage, lacks) if demand.part in lacks]


def check_objective(stage: StageSpec) -> None:
    """Raises ConfigError, naming the argument, if the stage's objective needs a capability that its engine lacks."""
    for demand, why in unmet(stage):
        raise ConfigError(
            f"{demand.words}, and the engine {stage.trainer.engine} has none: {why}",
            field=".".join(demand.field),
            fix=demand.fix,
        )


def check_room(stage: StageSpec, host: Host) -> None:
    """Raises ConfigError, with the arithmetic, if a stage needs more memory than a device has in total.

    Memory used by other processes is checked by the engine when it opens. Nothing is raised for a host not inspected,
    or for a cluster with a node that has not reported its memory.
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
    """Returns the expected peak memory of one of the stage's trainer processes; None if unknown."""
    return _memory(lookup(stage.trainer.engine).forecast, stage, host)


def ranks_of(stage: StageSpec) -> int:
    """Returns the number of trainer processes of the stage."""
    return stage.trainer.devices or max(1, stage.trainer.engine_args.get("ranks", 0))


def ranks_on_device(stage: StageSpec) -> int:
    """Returns the number of the stage's trainer processes on one device: one on a GPU, all of them on a CPU."""
    return 1 if stage.trainer.devices else ranks_of(stage)


def _memory(
    needs_of: Callable[[StageSpec, Path, int], list[Need]] | None, stage: StageSpec, host: Host
) -> EngineMemory | None:
    """Returns the memory needed on one device of the host; None if unknown, or for a stage without training."""
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
    """Raises ConfigError for a model of the stage (policy, critic, teacher) that its engine cannot train or load."""
    trains = lookup(stage.trainer.engine).trains
    if trains is None or stage.kind == "explore":
        return
    for folder in (stage.model.path, stage.trainer.critic_path, stage.trainer.teacher_path):
        if folder:
            trains(stage, Path(folder))


def make_engine(spec: TrainerSpec, reach: ReachSpec = OWNERS) -> TrainerEngine:
    """Constructs the trainer engine of a specification, before `open`; `reach` has the network addresses and variables
    allowed to the experiment.

    Raises ConfigError for unfit arguments, NotInstalledError without its packages.
    """
    engine = lookup(spec.engine)
    if engine.extra:
        check_extra(engine.extra, f"the {spec.engine} engine")
    return engine.make(
        TrainerOpening(trainer=spec, arguments=_arguments(engine, spec), threads=threads_of(spec.threads), reach=reach)
    )


def _arguments(engine: TrainerEngineDefinition[Any], spec: TrainerSpec) -> msgspec.Struct:
    """Returns the engine's arguments, parsed. Raises ConfigError."""
    taker = f"the {spec.engine} engine"
    kind: type[msgspec.Struct] = engine.arguments
    return parsed(spec.engine_args, kind, taker=taker, field=_FIELD, beside=("threads", "dtype"))
