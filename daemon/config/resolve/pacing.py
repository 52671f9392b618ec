"""`synchronizer` to a schedule, and to what may be trained on."""

from __future__ import annotations

from pathlib import PurePosixPath

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import WrongValue
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.resolve.policy import resolve_policy
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops.errors import ConfigError
from rftd.streams.schedule import needed_staleness
from rftd.streams.spec import AlgorithmSpec, PolicySpec, SyncSpec
from rftd.workers.weights.registry import CHANNELS

_SYNC: FieldPath = ("synchronizer",)


def resolve_pacing(
    experiment: Experiment, algorithm: AlgorithmSpec, batch: int, notes: Notes
) -> tuple[SyncSpec, PolicySpec]:
    """When explorers take weights, how far they run ahead, how old an experience may be."""
    given = experiment.synchronizer
    fixed = given.sync_style == "fixed"
    sync = SyncSpec(
        method=_method(experiment, notes),
        style=given.sync_style,
        interval=given.sync_interval,
        offset=given.sync_offset,
        timeout_s=given.sync_timeout,
        memory_dir=given.memory_dir,
        explorer_interval=given.explorer_sync_interval or 0,
        trainer_interval=given.trainer_sync_interval or 0,
    )
    _without_effect(sync, notes)
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
    return sync, resolve_policy(experiment, sync, needed_staleness(sync), algorithm, batch, notes)


def _without_effect(sync: SyncSpec, notes: Notes) -> None:
    """Fields that the style does not look at."""
    if sync.style == "fully_async" and sync.explorer_interval:
        notes.warn("synchronizer.explorer_sync_interval has no effect: fully_async explorers never stop")
    if sync.style == "fully_async" and sync.offset:
        notes.warn("synchronizer.sync_offset has no effect: fully_async explorers never stop")
    if sync.style == "explorer_driven" and sync.trainer_interval:
        notes.warn("synchronizer.trainer_sync_interval has no effect: with explorer_driven the trainer is asked")


def _method(experiment: Experiment, notes: Notes) -> str:
    given = experiment.synchronizer
    interval = max(given.sync_interval, given.explorer_sync_interval or 1, given.trainer_sync_interval or 1)
    if given.memory_dir and not PurePosixPath(given.memory_dir).is_absolute():
        notes.wrong((*_SYNC, "memory_dir"), "must be an absolute path", "name a folder in memory, such as /dev/shm")
    if given.sync_method == "nccl":
        notes.warn("synchronizer.sync_method nccl needs GPUs: weights travel as checkpoint files instead")
        return "checkpoint"
    try:
        CHANNELS.check(given.sync_method)
    except ConfigError as error:
        notes.wrong((*_SYNC, "sync_method"), error.what, error.fix, WrongValue)
        return "checkpoint"
    if given.sync_method == "memory" and experiment.mode in ("explore", "train"):
        notes.warn("the halves of an experiment may be on two machines: weights travel as checkpoint files")
        return "checkpoint"
    if given.sync_method != "checkpoint" and experiment.deterministic and interval > 1:
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
