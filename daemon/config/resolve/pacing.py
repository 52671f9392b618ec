"""`synchronizer` to a schedule, and to what may be trained on."""

from __future__ import annotations

from pathlib import PurePosixPath

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.spec import AlgorithmSpec, PolicySpec, SyncSpec

_SYNC: FieldPath = ("synchronizer",)


def resolve_pacing(experiment: Experiment, algorithm: AlgorithmSpec, notes: Notes) -> tuple[SyncSpec, PolicySpec]:
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
    return sync, _policy(experiment, sync, algorithm, notes)


def _policy(experiment: Experiment, sync: SyncSpec, algorithm: AlgorithmSpec, notes: Notes) -> PolicySpec:
    if sync.style == "fixed":
        # Explorers stand still after interval + offset batches until new weights: fewer in flight, or a lower
        # bound, and the experiment could never go on.
        inflight, needed = sync.interval + sync.offset, sync.offset + sync.interval - 1
        bound = needed
    else:
        inflight = max(experiment.explorer.max_inflight_batches, 1)
        needed = sync.interval - 1
        bound = inflight + needed
    asked = _asked_bound(algorithm, notes)
    if asked is not None:
        bound = asked
        if asked < needed:
            what = f"max_staleness is {asked}, but with this synchronizer an experience is up to {needed} steps old"
            fix = f"set max_staleness to at least {needed}, or lower sync_interval or sync_offset"
            notes.wrong(("algorithm", "sample_strategy_args"), what, fix)
    return PolicySpec(
        kind="in_order" if experiment.deterministic else "hard_bound",
        max_staleness_versions=bound,
        max_inflight_batches=inflight,
        min_group_members=min(2, algorithm.repeat_times),
    )


def _asked_bound(algorithm: AlgorithmSpec, notes: Notes) -> int | None:
    if algorithm.sample_strategy != "staleness_control":
        return None
    asked = algorithm.sample_strategy_args.get("max_staleness")
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 0:
        notes.wrong(("algorithm", "sample_strategy_args", "max_staleness"), "must be a whole number, 0 or more")
        return None
    return asked


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
