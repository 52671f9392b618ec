"""Plan of the workers' memory at acceptance: checks the memory of devices, and chooses micro-batches that fit.

The plan is part of the specification, so that resume, fork and replay use equal micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.streams.spec.engines import MemoryNeed, WorkerMemory
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TrainerSpec
from rftd.workers.devices.device_memory import EngineMemory, free_on, shown
from rftd.workers.devices.host import ANY_HOST, Device, Host
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.generation.shared_devices import explorers_on
from rftd.workers.learning import engine_registry as trainer_engines
from rftd.workers.models.model_folder import has_config

_USED_SHARE: Final = 0.9
"""Share of the available memory planned for a micro-batch: forecasts are inexact, and other processes use memory."""
_RECOMPUTED: Final = "gradient_checkpointing"
"""Engine argument enabling recomputation of layers."""


def with_memory(spec: ExperimentSpec, host: Host) -> ExperimentSpec:
    """Returns the specification with micro-batches that fit the trainers' memory, and with a memory forecast for the
    workers.

    Values written in the file stay, and so does every field of a deterministic experiment: its bits must not depend on
    a machine's free memory. For a host not yet inspected, nothing is changed. Blocks.
    """
    if not host.seen:
        return spec
    warnings: list[str] = []
    stages = spec.stages
    if not spec.deterministic:
        stages = tuple(
            _with_fitting_micro_batch(stage, host, warnings) for stage in _with_recomputation(stages, host, warnings)
        )
    memory = tuple(row for stage in stages for row in _memory_rows(stage, host, deterministic=spec.deterministic))
    return msgspec.structs.replace(spec, stages=stages, memory=memory, warnings=(*spec.warnings, *warnings))


def as_before(spec: ExperimentSpec, before: Sequence[StageSpec], host: Host = ANY_HOST) -> ExperimentSpec:
    """Returns the specification with the micro-batches and layer recomputation chosen earlier for its stages `before`.

    Stages with a micro-batch written in either file keep their own. With a known `host`, the memory forecast is
    computed again. Blocks.
    """
    chosen = {stage.name: stage.trainer for stage in before if not stage.trainer.micro_batch_written}
    unchanged = {stage.name for stage in spec.stages if stage.name in chosen and not stage.trainer.micro_batch_written}
    stages = tuple(
        _with_earlier_choice(stage, chosen[stage.name]) if stage.name in unchanged else stage for stage in spec.stages
    )
    stale = tuple(_micro_batches_of(name) for name in unchanged)
    warnings = tuple(warning for warning in spec.warnings if not (stale and warning.startswith(stale)))
    memory = spec.memory
    if host.seen:
        memory = tuple(row for stage in stages for row in _memory_rows(stage, host, deterministic=spec.deterministic))
    return msgspec.structs.replace(spec, stages=stages, memory=memory, warnings=warnings)


def _with_earlier_choice(stage: StageSpec, before: TrainerSpec) -> StageSpec:
    """Returns the stage with micro-batch and layer recomputation of the earlier trainer `before`."""
    arguments = stage.trainer.engine_args
    if stage.trainer.engine == before.engine == "torch" and _RECOMPUTED in before.engine_args:
        arguments = {_RECOMPUTED: before.engine_args[_RECOMPUTED], **arguments}
    return _with_trainer(stage, max_tokens_per_micro_batch=before.max_tokens_per_micro_batch, engine_args=arguments)


def _micro_batches_of(stage: str) -> str:
    """Returns the beginning of the warning about another micro-batch chosen for a stage."""
    return f"stage {stage!r}: micro-batches have "


def _with_fitting_micro_batch(stage: StageSpec, host: Host, warnings: list[str]) -> StageSpec:
    """Returns the stage with the largest micro-batch fitting its trainer: the written size, a half, a quarter, ..."""
    trainers = host.for_trainers
    memory = trainer_engines.memory_of(stage, trainers)
    if memory is None or stage.trainer.micro_batch_written:
        return stage
    room_bytes = _room_bytes(memory.device, stage, host)
    fitted = stage
    smallest_tokens = _smallest_tokens(stage)
    while not _fits(fitted, trainers, room_bytes) and fitted.trainer.max_tokens_per_micro_batch > smallest_tokens:
        half = fitted.trainer.max_tokens_per_micro_batch // 2
        fitted = _with_trainer(fitted, max_tokens_per_micro_batch=max(smallest_tokens, half))
    if fitted is not stage:
        warnings.append(
            f"{_micro_batches_of(stage.name)}{fitted.trainer.max_tokens_per_micro_batch} tokens instead of "
            f"{stage.trainer.max_tokens_per_micro_batch} (trainer.max_token_len_per_gpu), with which its trainer would "
            f"take {shown(_total_bytes(stage, memory))}; {memory.device.name} has {shown(room_bytes)} for it"
        )
    return fitted


def _with_recomputation(stages: tuple[StageSpec, ...], host: Host, warnings: list[str]) -> tuple[StageSpec, ...]:
    """Returns the stages with recomputation of layers in all torch trainers, if one of them does not fit otherwise: the
    torch engine loads a model once.
    """
    tight = [stage for stage in stages if _is_tight(stage, host)]
    if not tight or any(_RECOMPUTED in stage.trainer.engine_args for stage in stages):
        return stages
    warnings.append(
        f"trainer.engine_args.{_RECOMPUTED} is true: even with the smallest micro-batch the trainer of stage "
        f"{tight[0].name!r} has no room for the activations of all layers; steps take about a third longer"
    )
    return tuple(
        _with_trainer(stage, engine_args={**stage.trainer.engine_args, _RECOMPUTED: True})
        if stage.trainer.engine == "torch"
        else stage
        for stage in stages
    )


def _smallest_tokens(stage: StageSpec) -> int:
    """Returns the size of the smallest micro-batch in tokens: the stage's longest text."""
    return min(stage.trainer.max_tokens_per_micro_batch, max(1, stage.model.max_model_len))


def _is_tight(stage: StageSpec, host: Host) -> bool:
    """True if the trainer does not fit even with the smallest micro-batch."""
    if stage.trainer.engine != "torch" or stage.trainer.micro_batch_written:
        return False
    stage = _with_trainer(stage, max_tokens_per_micro_batch=_smallest_tokens(stage))
    memory = trainer_engines.memory_of(stage, host.for_trainers)
    return memory is not None and not _fits(stage, host.for_trainers, _room_bytes(memory.device, stage, host))


def _fits(stage: StageSpec, host: Host, room_bytes: int) -> bool:
    """True if the trainer's memory fits `room_bytes`, or is unknown."""
    memory = trainer_engines.memory_of(stage, host)
    return memory is None or _total_bytes(stage, memory) <= room_bytes


def _total_bytes(stage: StageSpec, memory: EngineMemory) -> int:
    """Returns the bytes needed by all trainer ranks that share the device."""
    return memory.size_bytes * trainer_engines.ranks_on_device(stage)


def _room_bytes(device: Device, stage: StageSpec, host: Host) -> int:
    """Returns the planned share (`_USED_SHARE`) of the device memory available to a trainer; on a local CPU, of the
    free memory less the explorers' need.
    """
    room_bytes = device.memory_bytes
    if device.kind == "cpu" and not host.clustered and host.trainers is None:
        room_bytes = min(room_bytes, free_on("cpu"))
        memory = None if stage.kind == "train" else rollout_engines.memory_of(stage, host)
        if memory is not None and memory.device == device:
            room_bytes -= memory.size_bytes * explorers_on(device, stage.rollout, host)
    return max(0, int(_USED_SHARE * room_bytes))


def _memory_rows(stage: StageSpec, host: Host, *, deterministic: bool) -> Iterator[WorkerMemory]:
    """Yields the memory forecast of the stage's trainer and of its explorers, as far as known."""
    if not has_config(Path(stage.model.path)):
        return
    trainer = trainer_engines.memory_of(stage, host.for_trainers)
    if trainer is not None:
        yield _memory_row("trainer", stage, trainer, trainer_engines.ranks_on_device(stage))
    explorer = None if stage.kind == "train" else rollout_engines.memory_of(stage, host, deterministic=deterministic)
    if explorer is not None:
        yield _memory_row("explorer", stage, explorer, explorers_on(explorer.device, stage.rollout, host))


def _memory_row(role: str, stage: StageSpec, memory: EngineMemory, workers: int) -> WorkerMemory:
    """Builds the memory forecast of a role; `workers` is the number of processes sharing the device."""
    return WorkerMemory(
        role=role,
        stage=stage.name,
        workers=workers,
        device=memory.device.name,
        device_bytes=memory.device.memory_bytes,
        needs=tuple(MemoryNeed(what=need.what, size_bytes=need.size_bytes) for need in memory.needs if need.size_bytes),
    )


def _with_trainer(stage: StageSpec, **changes: Any) -> StageSpec:
    """Returns a copy of the stage with these fields of its trainer changed."""
    return msgspec.structs.replace(stage, trainer=msgspec.structs.replace(stage.trainer, **changes))
