"""Checks of an experiment's folder: whether it is writable, and has room for the checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rftd.daemon.cli.output.quantity import size
from rftd.daemon.observe.doctor.folder import check_store
from rftd.daemon.run.supervisor.disk_guard import DiskLimits
from rftd.ops.health import Diagnosis
from rftd.storage.files.disk import LocalDisk, nearest
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.conversion.hf_folder import dtype_of
from rftd.workers.devices.device_memory import elements_of

_FLOAT32_BYTES: Final = 4
"""Bytes of a float32 number."""
_MOMENTS: Final = 2
"""Number of moments kept by Adam for each weight."""
_VERSIONS: Final = 6
"""Approximate number of published weight versions existing at a time."""
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108
"""Folder of files in memory."""
_MEMORY: Final = "memory"
"""Synchronisation method handing weights over in memory."""
_HALF_AS_WIDE: Final = ("bfloat16", "float16")
"""Dtypes of a model with a transformers folder beside the trainer's float32 tensors."""


def check_checkpoints(spec: ExperimentSpec) -> Iterator[Diagnosis]:
    """Yields the findings about the experiment's folder, without creating it."""
    job = Path(spec.job_dir)
    write_check = check_store(job, "checkpoints")
    if write_check.status != "ok":
        yield write_check
        return
    trained = [stage for stage in spec.stages if _has_weights(stage)]
    checkpoint_bytes = max((_checkpoint_bytes(stage) for stage in trained), default=0)
    count = sum(_checkpoint_count(stage) for stage in trained)
    if checkpoint_bytes:
        yield _room_finding(job, checkpoint_bytes, count)
    in_memory = [stage for stage in trained if stage.synchronizer.sync_method == _MEMORY]
    if in_memory:
        yield _shared_memory_finding(in_memory)


def _has_weights(stage: StageSpec) -> bool:
    """True if the stage's trainer writes checkpoints of weights on this machine."""
    elsewhere = (SERVICE, "fake", "tinker", "external")
    return stage.kind != "explore" and stage.trainer.engine not in elsewhere and bool(stage.model.path)


def _checkpoint_bytes(stage: StageSpec) -> int:
    """Returns the size of one checkpoint: float32 weights, and moments of trained tensors, except an adapter's few."""
    elements = elements_of(Path(stage.model.path))
    learnt = 0 if stage.model.lora is not None else elements
    moments = 0 if stage.algorithm.optimizer.optimizer_type == "sgd" else _MOMENTS * learnt
    weights = elements if stage.model.lora is None or stage.trainer.save_hf == "always" else 0
    rounded = stage.trainer.save_hf == "always" and dtype_of(Path(stage.model.path)) in _HALF_AS_WIDE
    exported = elements * _FLOAT32_BYTES // 2 if rounded and stage.model.lora is None else 0
    return _FLOAT32_BYTES * (weights + moments) + exported


def _checkpoint_count(stage: StageSpec) -> int:
    """Returns the number of a stage's checkpoints existing at once: all it makes, or the configured limit."""
    interval = stage.trainer.save_interval
    made_count = max(1, math.ceil(stage.total_steps / interval)) if interval else 1
    most = stage.trainer.max_checkpoints_to_keep
    return min(made_count, most) if most else made_count


def _room_finding(job: Path, each_bytes: int, count: int) -> Diagnosis:
    """Returns the finding whether `count` checkpoints of `each_bytes` fit the volume of the folder."""
    volume = LocalDisk().volume(nearest(job))
    free_bytes = volume.free_bytes - DiskLimits().reserve_of(volume)
    needed = f"{count} checkpoint{'s' if count > 1 else ''} of {size(each_bytes)}"
    available = f"{size(max(0, free_bytes))} can be used at {nearest(job)}"
    fix = "free some space, set trainer.max_checkpoints_to_keep, save less often, or give another checkpoint_root_dir"
    if each_bytes > free_bytes:
        return Diagnosis("checkpoints", "fail", f"not one checkpoint of {size(each_bytes)} has room: {available}", fix)
    if each_bytes * count > free_bytes:
        return Diagnosis("checkpoints", "warn", f"there is no room for {needed}: {available}", fix)
    return Diagnosis("checkpoints", "ok", f"there is room for {needed}: {available}")


def _shared_memory_finding(stages: list[StageSpec]) -> Diagnosis:
    """Returns the finding about the shared-memory folder of the weights."""
    folder = Path(stages[0].synchronizer.memory_dir or _SHARED_MEMORY)
    need_bytes = _VERSIONS * max(_FLOAT32_BYTES * elements_of(Path(stage.model.path)) for stage in stages)
    check = "weights in memory"
    if not folder.is_dir():
        finding = f"there is no {folder}: each version is written as a file"
        return Diagnosis(check, "warn", finding, "set synchronizer.memory_dir, or sync_method: checkpoint")
    free_bytes = LocalDisk().volume(folder).free_bytes
    finding = f"{_VERSIONS} versions take {size(need_bytes)}, and {folder} has {size(free_bytes)} free"
    if free_bytes < need_bytes:
        fix = "give it more (docker run --shm-size), or set synchronizer.sync_method: checkpoint"
        return Diagnosis(check, "warn", f"{finding}: the rest is written as files", fix)
    return Diagnosis(check, "ok", finding)
