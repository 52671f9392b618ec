"""`Dispatcher` decides what to lease, expire, close and complete. It is pure but for its view of who is alive."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import (
    ConfigError,
    DataError,
    DiskFullError,
    LogCorruptError,
    NotFoundError,
    StaleFlightError,
    UnreachableError,
    UsageError,
)
from rftd.streams.events.task import GroupClosed, TaskExpired
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.folds.group import Lease
from rftd.streams.folds.roster import Gone
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.log.decision import Decision, slot_partition
from rftd.streams.spec.schedule import has_windows
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.closing import GivenUp, close_groups, explored, leasable
from rftd.workers.control.evaluation import complete_evals, lease_evals
from rftd.workers.control.hold import NoStage, Paused, StagePlanned
from rftd.workers.control.holds import (
    AwaitsAnswer,
    AwaitsWeights,
    ClosesGroups,
    Dispatched,
    DispatcherHold,
    LeaseHold,
    NoCredits,
    NoExplorers,
    NoneAlone,
    TrainsDataset,
)
from rftd.workers.control.isolation import Isolation, is_suspect
from rftd.workers.control.leasing import Credits, held_version, lease_alone, lease_groups, next_lease
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.over_rollout import groups_over
from rftd.workers.control.planner import view_of
from rftd.workers.control.policies.policy import Flight
from rftd.workers.control.policies.registry import policy_of
from rftd.workers.control.selectors.task_rows import ColumnSource, TaskRows, no_columns
from rftd.workers.control.windows import overdue_of


def fresh_enough(state: RunState, stage: StageSpec, explorers: list[WorkerStarted]) -> list[WorkerStarted]:
    """The explorers whose rollouts would not be given up as they begin; the others have yet to load newer weights."""
    if has_windows(stage.synchronizer):
        return explorers  # a lease says what to load
    view = view_of(state, stage)
    policy = policy_of(stage.policy)
    flights = [Flight(worker.worker, held_version(state, worker)) for worker in explorers]
    too_old = {flight.group for flight in policy.abort_inflight(view, flights)}
    return [worker for worker in explorers if worker.worker not in too_old]


def stale_groups(state: RunState, stage: StageSpec) -> dict[UUID, GivenUp]:
    """Open groups that the policy aborts, with why. What is done of them is kept: the policy judges it like the rest.

    A flight is as old as the newest of its leases, so none is given up of which a rollout may be fresh; and no older
    than the weights that it waits for.
    """
    flights = [
        Flight(group.id, max(group.min_version, *held))
        for group in state.groups.open.values()
        if group.sequence >= 0 and group.leases and not group.terminal
        if min(held := [lease.held_version for lease in group.leases.values()]) >= 0
    ]
    if not flights:
        return {}
    view = view_of(state, stage)
    return {
        flight.group: GivenUp(
            StaleFlightError.code,
            f"its rollouts began on weight version {flight.oldest_version}, and step "
            f"{view.first_version + view.planned_steps} is planned (policy {stage.policy.kind})",
            keep_members=True,
        )
        for flight in policy_of(stage.policy).abort_inflight(view, flights)
    }


def slow_after_s(state: RunState, stage: StageSpec) -> float | None:
    """Seconds that a lease lasts before it is slow; None if none ever is, or while nothing is known of this stage."""
    reissue = stage.rollout.straggler_reissue
    groups = state.groups
    if not reissue.enable or groups.recent_stage != state.spine.stage or (mean_s := groups.mean_duration_s) is None:
        return None
    return max(reissue.ratio * mean_s, limits.REISSUE_LEAST_S)


def lease_stragglers(
    state: RunState, stage: StageSpec, credits: Credits, liveness: Liveness, now_s: float
) -> Iterator[Decision]:
    """Second leases. Asked last, so that they take only places for which there is nothing else."""
    slow_s = slow_after_s(state, stage)
    if slow_s is None:
        return
    given = dict.fromkeys(state.groups.open, 0)
    # Every lease is asked for, also those that are not slow: the first question about a lease starts its clock.
    for lease in [each for each in state.groups.leases.values() if liveness.age_s(each.id, now_s) > slow_s]:
        rollouts = _left(state, stage, lease)
        if not rollouts:
            continue
        worker = credits.take_idle(len(rollouts), but=lease.worker)
        if worker is None:
            return
        group = state.groups.open[lease.group]
        number = given[lease.group]
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


EXPIRY_LOOK_S: Final = 0.1
"""Seconds between two looks at the deadlines of leases, which are many seconds long, unless a worker left."""


class Dispatcher:
    """Decisions of one experiment's dispatcher. The caller appends them, folds them, and asks again."""

    def __init__(self, state: RunState, liveness: Liveness, *, columns: ColumnSource = no_columns) -> None:
        self._state = state
        self._rows = TaskRows(state, columns)
        self._liveness = liveness
        self._asked = (-1, -1, -1)
        """The stage, and the steps planned and trained, when the policy was last asked what to abort."""
        self._looked: tuple[int, float] | None = None
        """The number of workers that were gone when the deadlines were last looked at, and the seconds of that look."""
        self._waiting: tuple[tuple[int, int], float] | None = None
        """(Stage, window) that waits for weights, and since when."""

    def decide(self, now_s: float) -> Dispatched:
        """Everything that is due at this reading of the monotonic clock, and why no more is given out."""
        state = self._state
        spine = self._state.spine
        paused = Paused(spine.cause) if spine.status is Status.PAUSED else None
        if spine.spec is None or spine.stage < 0 or spine.status not in (Status.RUNNING, Status.PAUSED):
            return Dispatched((), paused or NoStage())
        if paused is not None:
            self._waiting = None
        stage = spine.stage_spec()
        self._liveness.tick(now_s)
        over = spine.stage_completed or explored(state, stage)
        given_up = {} if over or stage.kind == "train" else self._given_up(stage, now_s)
        # Expire, close, complete, lease: what an earlier one frees a later one gives out, but only once it is
        # folded.
        decisions = list(self._expire(over, now_s, given_up)) if over or self._look_due(now_s) else []
        decisions += self._close(over, given_up)
        decisions += complete_evals(state)
        if paused is not None or spine.stage_completed:
            return Dispatched(decisions, paused or NoStage())
        if given_up:  # what is free then is known once that is folded
            return Dispatched(decisions)
        return self._lease(stage, over, now_s, decisions)

    def _look_due(self, now_s: float) -> bool:
        gone = len(self._state.roster.gone)
        if self._looked is not None and self._looked[0] == gone and now_s - self._looked[1] < EXPIRY_LOOK_S:
            return False
        self._looked = gone, now_s
        return True

    def _given_up(self, stage: StageSpec, now_s: float) -> dict[UUID, GivenUp]:
        spine = self._state.spine
        stale = dict[UUID, GivenUp]()
        if self._asked != (asked := (spine.stage, spine.planned, spine.version)):  # else nothing has become staler
            stale = stale_groups(self._state, stage)
            self._asked = asked
        return stale | groups_over(self._state, stage, self._liveness, now_s)

    def _close(self, over: bool, given_up: Mapping[UUID, GivenUp]) -> Iterator[Decision]:
        for decision in close_groups(self._state, stage_over=over, given_up=given_up):
            if isinstance(decision.event, GroupClosed):
                # Else the clocks of closed groups would be kept for as long as the daemon lives.
                self._liveness.forget(decision.event.group)
                for lease in self._state.groups.open[decision.event.group].leases:
                    self._liveness.forget(lease)
            yield decision

    def _lease(self, stage: StageSpec, over: bool, now_s: float, decisions: list[Decision]) -> Dispatched:
        """The decisions with leases of all that can be given out, and why there are no more."""
        state = self._state
        heard = [worker for worker in state.roster.explorers() if not self._liveness.silent(worker.worker, now_s)]
        if stage.kind == "train" or over:
            evals, evaluation = lease_evals(state, stage, heard)
            return Dispatched(decisions + evals, self._over(stage, decisions), evaluation)
        isolation = Isolation(state, stage, heard)
        # Suspects first: the explorers that are kept free for them are in none of the lists below.
        decisions += lease_alone(state, stage, isolation)
        evals, evaluation = lease_evals(state, stage, isolation.others)
        fresh = fresh_enough(state, stage, isolation.others)
        credits = Credits(state, fresh, stage.algorithm.repeat_times)
        leases, held = lease_groups(state, stage, credits, self._rows)
        overdue = [] if leases else self._overdue(stage, held, now_s)
        hold: DispatcherHold | None = None if overdue else held
        if not heard:
            hold = NoExplorers()
        elif isolation.waiting or isinstance(held, NoCredits):
            hold = _no_credits(heard, fresh, isolation, credits)
        decisions += evals + leases + overdue
        decisions += lease_stragglers(state, stage, credits, self._liveness, now_s)
        return Dispatched(decisions, hold, evaluation)

    def _over(self, stage: StageSpec, decisions: Sequence[Decision]) -> DispatcherHold | None:
        """The hold of a stage that needs no more groups; None while its groups are being closed."""
        if stage.kind == "train":
            return TrainsDataset()
        if decisions:
            return None
        return ClosesGroups(self._state.groups.to_close) if self._state.groups.to_close else StagePlanned()

    def _overdue(self, stage: StageSpec, hold: LeaseHold | None, now_s: float) -> list[Decision]:
        """The event that explorers have waited longer than `sync_timeout` at a sync point; one for a window at most."""
        if not isinstance(hold, AwaitsAnswer | AwaitsWeights) or hold.timeout_s is None:
            self._waiting = None
            return []
        place = (self._state.spine.stage, hold.window)
        looked_s = self._liveness.looked_s(now_s)
        if self._waiting is None or self._waiting[0] != place:
            self._waiting = place, looked_s
        waited_s = looked_s - self._waiting[1]
        if waited_s < hold.timeout_s:
            return []
        return [Decision(overdue_of(self._state, stage, view_of(self._state, stage), hold, waited_s))]

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
                reason = f"no progress within {lease.deadline_s} s"
                waits = self._waits_for_weights(lease.worker)
                reason = f"{reason}: its explorer waits for weights" if waits else reason
                # Excused: while it waited for weights nothing was tried, so no attempt of the group is
                # spent.
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


def _no_credits(
    heard: list[WorkerStarted], fresh: list[WorkerStarted], isolation: Isolation, credits: Credits
) -> NoCredits:
    """The hold for lack of explorers: those of `heard` that are `fresh` have no room."""
    return (NoneAlone if isolation.waiting else NoCredits)(
        explorers=len(heard),
        rollouts=credits.rollouts,
        kept=len(heard) - len(isolation.others),
        suspects=isolation.suspects,
        outdated=len(isolation.others) - len(fresh),
    )


_FOR_WEIGHTS: Final = frozenset(
    {WorkerState.WAIT_WEIGHTS, WorkerState.WAIT_VERSION, WorkerState.LOAD_WEIGHTS, WorkerState.LOAD_FAILED}
)
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
