"""`synchronizer` to a schedule, and to what may be trained on."""

from __future__ import annotations

from pathlib import PurePosixPath

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.resolve.policy import resolve_policy
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.spec import AlgorithmSpec, PolicySpec, SyncSpec

_SYNC: FieldPath = ("synchronizer",)


def resolve_pacing(
    experiment: Experiment, algorithm: AlgorithmSpec, batch: int, notes: Notes
) -> tuple[SyncSpec, PolicySpec]:
    """When explorers take weights, how far they run ahead, how old an experience may be."""
    given = experiment.synchronizer
    interval = _interval(experiment, notes)
    fixed = given.sync_style == "fixed"
    if not fixed and given.sync_style != "fully_async":
        notes.warn(
            f"synchronizer.sync_style {given.sync_style} runs as fully_async: "
            "explorers take each version as it is published"
        )
    sync = SyncSpec(
        method=_method(experiment, interval, notes),
        style="fixed" if fixed else "fully_async",
        interval=interval,
        offset=given.sync_offset,
        timeout_s=given.sync_timeout,
        memory_dir=given.memory_dir,
    )
    if experiment.deterministic and (not fixed or given.sync_offset):
        field = (*_SYNC, "sync_offset" if fixed else "sync_style")
        what = "deterministic means that explorers wait for the trainer: sync_style fixed, sync_offset 0"
        notes.wrong(field, what, "write sync_style: fixed and sync_offset: 0, or deterministic: false")
    elif experiment.deterministic:
        notes.warn(
            f"deterministic: a task that is given up because of the machine changes the weights: a rollout that takes "
            f"longer than explorer.max_timeout ({experiment.explorer.max_timeout:g} s), or one whose explorers die, on "
            f"each of its attempts"
        )
    needed = sync.interval - 1 + (sync.offset if fixed else 0)
    return sync, resolve_policy(experiment, sync, needed, algorithm, batch, notes)


def _interval(experiment: Experiment, notes: Notes) -> int:
    given = experiment.synchronizer
    explorer = given.explorer_sync_interval or given.sync_interval
    trainer = given.trainer_sync_interval or given.sync_interval
    if explorer != trainer:
        notes.warn(
            f"explorer_sync_interval {explorer} and trainer_sync_interval {trainer} differ: "
            f"both are {max(explorer, trainer)}"
        )
    return max(explorer, trainer)


def _method(experiment: Experiment, interval: int, notes: Notes) -> str:
    given = experiment.synchronizer
    if given.memory_dir and not PurePosixPath(given.memory_dir).is_absolute():
        notes.wrong((*_SYNC, "memory_dir"), "must be an absolute path", "name a folder in memory, such as /dev/shm")
    if given.sync_method == "nccl":
        notes.warn("synchronizer.sync_method nccl needs GPUs: weights travel as checkpoint files instead")
        return "checkpoint"
    if given.sync_method == "memory" and experiment.deterministic and interval > 1:
        # A rollout is pinned to its version, which a trainer that is taken up between two of them cannot make again.
        notes.warn(
            "deterministic with sync_interval above 1: weights travel as checkpoint files, which a reboot leaves"
        )
        return "checkpoint"
    return given.sync_method


def eval_interval_steps(experiment: Experiment, interval: int, notes: Notes) -> int:
    """`eval_interval` floored to a multiple of the sync interval, at least one; 0 stays 0."""
    asked = experiment.explorer.eval_interval
    floored = max(asked // interval, 1) * interval if asked else 0
    if floored != asked:
        notes.warn(f"explorer.eval_interval {asked} becomes {floored}, a multiple of the sync interval {interval}")
    return floored
