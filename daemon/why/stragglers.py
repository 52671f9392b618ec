"""The slowest task that a step waits for: which, with whom, since when, and what will end it."""

from __future__ import annotations

from typing import Final

from rftd.daemon.why.scene import Scene
from rftd.daemon.why.wait import Level, Wait
from rftd.streams.folds.groups import Group, Lease
from rftd.streams.spec import StageSpec
from rftd.workers.control.leasing import LEASE_GRACE_S
from rftd.workers.control.over_rollout import needed_groups, step_of

_SLOW_MEANS: Final = 3.0
_LEAST_S: Final = 5.0
_UNKNOWN_S: Final = 60.0
"""The duration that counts as slow as long as no rollout of the stage has ended."""


def straggler_wait(scene: Scene) -> Wait | None:
    """The oldest lease of an experiment whose planner waits for experiences, if it is slow."""
    groups = scene.state.groups
    spine = scene.state.spine
    leases = (lease for lease in groups.leases.values() if _left(groups.open.get(lease.group), lease))
    oldest = min(leases, key=lambda lease: lease.leased_ns, default=None)
    if oldest is None:
        return None
    # The durations of the stage before say nothing about this one: its taskset and its lengths are others.
    mean_s = groups.mean_duration_s if groups.recent_stage == spine.stage else None
    slow_s = _UNKNOWN_S if mean_s is None else max(_SLOW_MEANS * mean_s, _LEAST_S)
    age_s = (scene.now_ns - oldest.leased_ns) / 1e9
    if age_s <= slow_s:
        return None
    group = groups.open[oldest.group]
    stage = spine.stage_spec()
    usual = f"; {mean_s:.1f} s is usual" if mean_s is not None else ""
    others = sorted({str(each.slot) for each in group.leases.values() if each.reissue and each.id != oldest.id})
    second = f"; explorer {', '.join(others)} works on it too" if others else ""
    return Wait(
        role="task",
        slot=oldest.slot,
        worker=str(oldest.worker),
        level=Level.WAITS,
        state="straggler",
        waiting_for=f"{_named(stage, group, oldest)}, for {age_s:.0f} s{usual}{second}",
        on_whom=f"explorer {oldest.slot}",
        unblock=_ends(stage, group, oldest, second=bool(others)),
        since_ns=oldest.leased_ns,
    )


def _left(group: Group | None, lease: Lease) -> list[int]:
    """Rollouts of the lease that have not ended."""
    return [] if group is None else [rollout for rollout in group.missing if rollout in lease.rollouts]


def _named(stage: StageSpec, group: Group, lease: Lease) -> str:
    left = ", ".join(map(str, _left(group, lease)))
    task = f"task {group.sequence} of explore step {step_of(stage, group)} (row {group.row} of epoch {group.epoch})"
    return f"{task}: rollout {left} of {group.repeat_times} with explorer {lease.slot}"


def _ends(stage: StageSpec, group: Group, lease: Lease, *, second: bool) -> str:
    """The rules that will end the task, the soonest first as far as that is known."""
    spec = stage.rollout
    ends = []
    if spec.over_ratio:
        ends.append(
            f"over_rollout gives it up {spec.over_wait_s:g} s after {needed_groups(stage)} of the "
            f"{stage.batch_size} tasks of its step are done"
        )
    if spec.reissue_ratio and not second and not lease.alone:
        ends.append("an idle explorer gets it too")
    times = spec.max_retry_times + 1
    # A lease lasts longer than its attempts by the grace, which is for the explorer's own time-out to come first.
    ends.append(f"an attempt ends after {lease.deadline_s - LEASE_GRACE_S:.3g} s, and there are {times}")
    return "; ".join(ends)
