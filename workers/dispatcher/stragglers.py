"""Leases that last much longer than rollouts lately did: what is left of one is given to a second, idle explorer.

Both go on: of each rollout the first completion counts (rule 4), and when the group closes the other explorer drops its
own. A second lease is no attempt. The seed of a rollout follows from its place in the experiment, so whoever is first
draws the same tokens from the same weights: a race prefers no short answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from rftd.ops import limits
from rftd.streams.folds.groups import Lease
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec import StageSpec
from rftd.workers.dispatcher.closing import leasable
from rftd.workers.dispatcher.decision import Decision
from rftd.workers.dispatcher.isolation import is_suspect
from rftd.workers.dispatcher.leasing import Credits, next_lease
from rftd.workers.dispatcher.liveness import Liveness


def slow_after_s(state: RunState, stage: StageSpec) -> float | None:
    """How long a lease lasts before it is slow; None if none is, or as long as nothing is known of this stage."""
    spec, groups = stage.rollout, state.groups
    if not spec.reissue_ratio or groups.recent_stage != state.spine.stage or (mean_s := groups.mean_duration_s) is None:
        return None
    return max(spec.reissue_ratio * mean_s, limits.REISSUE_LEAST_S)


def lease_stragglers(
    state: RunState, stage: StageSpec, credits: Credits, liveness: Liveness, now_s: float
) -> Iterator[Decision]:
    """Second leases. Asked last, so that they take only places for which there is nothing else."""
    slow_s = slow_after_s(state, stage)
    if slow_s is None:
        return
    given = dict.fromkeys(state.groups.open, 0)
    for lease in [each for each in state.groups.leases.values() if liveness.age_s(each.id, now_s) > slow_s]:
        rollouts = _left(state, stage, lease)
        if not rollouts:
            continue
        worker = credits.take_idle(len(rollouts), but=lease.worker)
        if worker is None:
            return
        group, number = state.groups.open[lease.group], given[lease.group]
        given[lease.group] += 1
        yield next_lease(state, stage, worker, group, rollouts, number=number, reissue=True)


def _left(state: RunState, stage: StageSpec, lease: Lease) -> tuple[int, ...]:
    """Rollouts of the lease that nobody ended and nobody else works on."""
    group = state.groups.open.get(lease.group)
    if group is None or lease.alone or lease.reissue or is_suspect(group):
        return ()
    if leasable(stage, group):
        return ()  # another lease of it is just being written, or has to wait for room
    others = {rollout for each in group.leases.values() if each.id != lease.id for rollout in each.rollouts}
    return tuple(rollout for rollout in group.missing if rollout in lease.rollouts and rollout not in others)
