"""Leases of finished groups to explorers, which run the stage's experience pipeline on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from rftd.ops.ids import derive
from rftd.streams.events.task import GroupLeased, TaskExpired
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.folds.group import Group
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.decision import Decision, slot_partition
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.closing import unprocessed_groups
from rftd.workers.control.leasing import LEASE_GRACE_S
from rftd.workers.control.liveness import Liveness


def lease_processing(state: RunState, stage: StageSpec, explorers: Sequence[WorkerStarted]) -> Iterator[Decision]:
    """Yields a lease for each finished group without a verdict and without a lease, in turn to the explorers.

    A group leased before may have ended the explorer: it is leased to an explorer without other leases for the
    pipeline, and without a rollout to be made alone.
    """
    if not explorers:
        return
    groups = state.groups
    # A lease stays until its group closes; with all rollouts ended it reserves nothing any more.
    reserved = {worker for id, worker in groups.alone.items() if not groups.open[groups.leases[id].group].terminal}
    busy = set[UUID]()
    for lease in _open_leases(state):
        busy.add(lease.worker)
        if lease.attempt > 1:
            reserved.add(lease.worker)
    for group in unprocessed_groups(state, stage):
        attempt = (group.processing.attempts if group.processing is not None else 0) + 1
        shut = reserved | busy if attempt > 1 else reserved
        free = [worker for worker in explorers if worker.worker not in shut]
        if not free:
            continue
        # By the position: the choice follows from the state, so a restarted daemon repeats it.
        worker = free[(group.sequence + attempt) % len(free)]
        busy.add(worker.worker)
        if attempt > 1:
            reserved.add(worker.worker)
        event = GroupLeased(
            lease=_lease_id(group.id, attempt),
            slot=worker.slot,
            worker=worker.worker,
            group=group.id,
            stage=group.stage,
            members=tuple(group.members[rollout] for rollout in sorted(group.members)),
            attempt=attempt,
            deadline_s=stage.rollout.max_timeout_s + LEASE_GRACE_S,
        )
        yield Decision(event, slot_partition(worker.slot))


def expire_processing(state: RunState, liveness: Liveness, now_s: float, *, stage_over: bool) -> Iterator[Decision]:
    """Yields the ends of the pipeline's leases past their deadline, of departed workers, or of a stage that is over."""
    for lease in _open_leases(state):
        id = lease.lease
        gone = lease.worker in state.roster.gone
        if not (stage_over or gone or liveness.overdue(id, lease.deadline_s, now_s)):
            continue
        liveness.forget(id)
        reason = STAGE_ENDED if stage_over else f"no progress within {lease.deadline_s} s"
        reason = "its worker left" if gone and not stage_over else reason
        yield Decision(
            TaskExpired(lease=id, slot=lease.slot, reason=reason, worker_gone=gone), slot_partition(lease.slot)
        )


def _open_leases(state: RunState) -> Iterator[GroupLeased]:
    """Yields the unfinished leases for the pipeline."""
    for id, group in state.groups.processing.items():
        processing = state.groups.open[group].processing
        assert processing is not None, group
        yield processing.leases[id]


def forget_processing(liveness: Liveness, group: Group) -> None:
    """Drops the clocks of all leases of a closed group for the pipeline."""
    for attempt in range(1, group.processing.attempts + 1 if group.processing is not None else 1):
        liveness.forget(_lease_id(group.id, attempt))


def _lease_id(group: UUID, attempt: int) -> UUID:
    return derive(group, "pipeline", attempt)
