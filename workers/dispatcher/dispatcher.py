"""`Dispatcher`: what to lease, expire, close and complete now. Pure but for its view of who is alive."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from rftd.ops.errors import (
    ConfigError,
    DataError,
    DiskFullError,
    LogCorruptError,
    NotFoundError,
    UnreachableError,
    UsageError,
)
from rftd.streams.events.task import GroupClosed, TaskExpired
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.folds.groups import Lease
from rftd.streams.folds.roster import Gone
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.spec import StageSpec
from rftd.workers.dispatcher.closing import GivenUp, close_groups
from rftd.workers.dispatcher.collecting import explored
from rftd.workers.dispatcher.decision import Decision, slot_partition
from rftd.workers.dispatcher.evaluation import complete_evals, lease_evals
from rftd.workers.dispatcher.isolation import Isolation
from rftd.workers.dispatcher.leasing import Credits, lease_alone, lease_groups, sync_wait
from rftd.workers.dispatcher.liveness import Liveness
from rftd.workers.dispatcher.over_rollout import groups_over
from rftd.workers.dispatcher.stale_flights import fresh_enough, stale_groups
from rftd.workers.dispatcher.stragglers import lease_stragglers
from rftd.workers.dispatcher.windows import overdue_of
from rftd.workers.planner.planner import view_of

EXPIRY_LOOK_S: Final = 0.1
"""Between two looks at the deadlines of leases, which are many seconds long; one at once when a worker left."""


class Dispatcher:
    """Decisions of one experiment's dispatcher. The caller appends them, folds them, and asks again."""

    def __init__(self, state: RunState, liveness: Liveness) -> None:
        self._state = state
        self._liveness = liveness
        self._asked = (-1, -1, -1)
        """The stage, and the steps planned and trained, when the policy was last asked what to abort."""
        self._looked: tuple[int, float] | None = None
        """How many workers were gone when the deadlines were last looked at, and when that was."""
        self._waiting: tuple[tuple[int, int], float] | None = None
        """(Stage, window) that waits for weights, and since when."""

    def decide(self, now_s: float) -> Sequence[Decision]:
        """Everything that is due at this reading of the monotonic clock."""
        state, spine = self._state, self._state.spine
        if spine.spec is None or spine.stage < 0 or spine.status not in (Status.RUNNING, Status.PAUSED):
            return ()
        if spine.status is Status.PAUSED:
            self._waiting = None
        stage = spine.stage_spec()
        self._liveness.tick(now_s)
        over = spine.stage_completed or explored(state, stage)
        given_up = {} if over or stage.kind == "train" else self._given_up(stage, now_s)
        decisions = list(self._expire(over, now_s, given_up)) if over or self._look_due(now_s) else []
        decisions += self._close(over, given_up)
        decisions += complete_evals(state)
        if given_up:  # what is free then is known once that is folded
            return decisions
        if spine.status is Status.RUNNING and not spine.stage_completed:
            decisions += self._lease(stage, over, now_s)
        return decisions

    def _look_due(self, now_s: float) -> bool:
        gone = len(self._state.roster.gone)
        if self._looked is not None and self._looked[0] == gone and now_s - self._looked[1] < EXPIRY_LOOK_S:
            return False
        self._looked = gone, now_s
        return True

    def _given_up(self, stage: StageSpec, now_s: float) -> dict[UUID, GivenUp]:
        spine, stale = self._state.spine, dict[UUID, GivenUp]()
        if self._asked != (asked := (spine.stage, spine.planned, spine.version)):  # else nothing has become staler
            self._asked, stale = asked, stale_groups(self._state, stage)
        return stale | groups_over(self._state, stage, self._liveness, now_s)

    def _close(self, over: bool, given_up: Mapping[UUID, GivenUp]) -> Iterator[Decision]:
        for decision in close_groups(self._state, stage_over=over, given_up=given_up):
            if isinstance(decision.event, GroupClosed):
                self._liveness.forget(decision.event.group)
                for lease in self._state.groups.open[decision.event.group].leases:
                    self._liveness.forget(lease)
            yield decision

    def _lease(self, stage: StageSpec, over: bool, now_s: float) -> Iterator[Decision]:
        explorers = [
            worker for worker in self._state.roster.explorers() if not self._liveness.silent(worker.worker, now_s)
        ]
        if stage.kind != "train" and not over:
            isolation = Isolation(self._state, stage, explorers)
            yield from lease_alone(self._state, stage, isolation)
            explorers = isolation.others
        yield from lease_evals(self._state, stage, explorers)
        if stage.kind != "train" and not over:
            explorers = fresh_enough(self._state, stage, explorers)
            credits = Credits(self._state, explorers, stage.algorithm.repeat_times)
            leases = list(lease_groups(self._state, stage, credits))
            yield from leases or self._overdue(stage, now_s)
            yield from lease_stragglers(self._state, stage, credits, self._liveness, now_s)

    def _overdue(self, stage: StageSpec, now_s: float) -> Iterator[Decision]:
        """Says so once if explorers have waited at a sync point for longer than `sync_timeout`."""
        spine = self._state.spine
        held = sync_wait(self._state, stage)
        if held is None or (place := (spine.stage, held.window)) in spine.overdue:
            self._waiting = None
            return
        looked_s = self._liveness.looked_s(now_s)
        if self._waiting is None or self._waiting[0] != place:
            self._waiting = place, looked_s
        waited_s = looked_s - self._waiting[1]
        if waited_s >= stage.sync.timeout_s:
            yield Decision(overdue_of(self._state, stage, view_of(self._state, stage), held, waited_s))

    def _waits_for_weights(self, worker: UUID) -> bool:
        latest = self._liveness.latest.get(worker)
        return latest is not None and latest.state in _FOR_WEIGHTS

    def _expire(self, over: bool, now_s: float, given_up: Container[UUID]) -> Iterator[Decision]:
        left = self._state.roster.gone
        for lease in self._state.groups.leases.values():
            if given_up and lease.group in given_up:
                continue
            if over:
                expired = TaskExpired(lease=lease.id, slot=lease.slot, reason=STAGE_ENDED)
            elif left and (gone := left.get(lease.worker)) is not None:
                expired = _of_gone(lease, gone)
            elif self._liveness.overdue(lease.id, lease.deadline_s, now_s):
                reason, waits = f"no progress within {lease.deadline_s} s", self._waits_for_weights(lease.worker)
                reason = f"{reason}: its explorer waits for weights" if waits else reason
                expired = TaskExpired(lease=lease.id, slot=lease.slot, reason=reason, excused=waits)
            else:
                continue
            self._liveness.forget(lease.id)
            yield Decision(expired, slot_partition(lease.slot))
        for evaluation in self._state.evals.open.values():
            for leased in evaluation.leases.values():
                if leased.worker in self._state.roster.gone or self._liveness.overdue(
                    leased.lease, leased.deadline_s, now_s
                ):
                    yield Decision(
                        TaskExpired(lease=leased.lease, slot=leased.slot, reason="its worker left or made no progress"),
                        slot_partition(leased.slot),
                    )


_FOR_WEIGHTS: Final = frozenset({"wait_weights", "wait_version", "load_weights", "load_failed"})
"""States of an explorer in which its rollouts have not begun: a lease that expires then was no attempt at them."""

_OF_ITS_OWN: Final = frozenset(
    kind.code
    for kind in (ConfigError, DataError, DiskFullError, LogCorruptError, NotFoundError, UnreachableError, UsageError)
) | {""}
"""Codes with which a worker stops that say nothing about what it did: it drained or refused, disk or log were away."""


def _of_gone(lease: Lease, gone: Gone) -> TaskExpired:
    """The end of a lease whose worker left."""
    excused = not gone.lost and gone.code in _OF_ITS_OWN
    had = "" if excused or not lease.alone else ", with nothing else to do"
    return TaskExpired(
        lease=lease.id,
        slot=lease.slot,
        reason=f"its worker left{had}: {gone.reason or 'it drained'}",
        worker_gone=True,
        excused=excused,
    )
