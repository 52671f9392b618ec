"""`Dispatcher` decides leases, expiries, closed groups and complete evaluations; pure except for the liveness of
workers.
"""

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
from rftd.workers.control.closing import GivenUp, close_groups, is_explored, leasable
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
from rftd.workers.control.processing import expire_processing, forget_processing, lease_processing
from rftd.workers.control.selectors.task_rows import ColumnSource, TaskRows, no_columns
from rftd.workers.control.windows import overdue_of


def fresh_explorers(state: RunState, stage: StageSpec, explorers: list[WorkerStarted]) -> list[WorkerStarted]:
    """Returns the explorers with weights new enough for a group started now; with older weights, the policy would abort
    it.
    """
    if has_windows(stage.synchronizer):
        return explorers  # a lease says what to load
    view = view_of(state, stage)
    policy = policy_of(stage.policy)
    flights = [Flight(worker.worker, held_version(state, worker)) for worker in explorers]
    too_old = {flight.group for flight in policy.abort_inflight(view, flights)}
    return [worker for worker in explorers if worker.worker not in too_old]


def stale_groups(state: RunState, stage: StageSpec) -> dict[UUID, GivenUp]:
    """Returns the open groups aborted by the policy, with reasons; their finished rollouts stay available to the
    policy.

    The age of a group is the newest version among its leases and the weights its explorers wait for, so no group with a
    possibly fresh rollout is aborted.
    """
    flights = [
        Flight(group.id, max(group.min_version, *held_versions))
        for group in state.groups.open.values()
        if group.sequence >= 0 and group.leases and not group.terminal
        if min(held_versions := [lease.held_version for lease in group.leases.values()]) >= 0
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
    """Returns the age in seconds from which a lease counts as slow, for a second lease of its rollouts.

    None if the stage leases nothing twice, or before enough durations of this stage are known.
    """
    reissue = stage.rollout.straggler_reissue
    groups = state.groups
    if not reissue.enable or groups.recent_stage != state.spine.stage or (mean_s := groups.mean_duration_s) is None:
        return None
    return max(reissue.ratio * mean_s, limits.REISSUE_LEAST_S)


def lease_stragglers(
    state: RunState, stage: StageSpec, credits: Credits, liveness: Liveness, now_s: float
) -> Iterator[Decision]:
    """Yields second leases of slow rollouts; to be called last, so that they only use explorers without other work."""
    slow_s = slow_after_s(state, stage)
    if slow_s is None:
        return
    reissued = dict.fromkeys(state.groups.open, 0)
    # Every lease is tested, slow or not: the first test of a lease starts its clock.
    for lease in [
        open_lease for open_lease in state.groups.leases.values() if liveness.age_s(open_lease.id, now_s) > slow_s
    ]:
        rollouts = _stragglers(state, stage, lease)
        if not rollouts:
            continue
        worker = credits.take_idle(len(rollouts), but=lease.worker)
        if worker is None:
            return
        group = state.groups.open[lease.group]
        number = reissued[lease.group]
        reissued[lease.group] += 1
        yield next_lease(state, stage, worker, group, rollouts, number=number, reissue=True)


def _stragglers(state: RunState, stage: StageSpec, lease: Lease) -> tuple[int, ...]:
    """Returns the unfinished rollouts of a slow lease without a second lease; none for groups leased alone or suspected
    of killing workers.
    """
    group = state.groups.open.get(lease.group)
    if group is None or lease.alone or lease.reissue or is_suspect(group):
        return ()
    if leasable(stage, group):
        return ()  # another lease of the group is just being written, or waits for room
    elsewhere = {
        rollout
        for other_lease in group.leases.values()
        if other_lease.id != lease.id
        for rollout in other_lease.rollouts
    }
    return tuple(rollout for rollout in group.missing if rollout in lease.rollouts and rollout not in elsewhere)


EXPIRY_CHECK_INTERVAL_S: Final = 0.1
"""Seconds between two checks of lease deadlines (many seconds long); a worker's departure leads to an
immediate check.
"""


class Dispatcher:
    """The deciding part of one experiment's dispatcher; callers append its decisions, fold them, and call `decide`
    again.
    """

    def __init__(self, state: RunState, liveness: Liveness, *, columns: ColumnSource = no_columns) -> None:
        """Decides for the run in `state`; `liveness` dates workers' signs of life, `columns` reads datasets' columns
        for selectors.
        """
        self._state = state
        self._rows = TaskRows(state, columns)
        self._liveness = liveness
        self._abort_checked = (-1, -1, -1)
        """(Stage, steps planned, steps trained) when the policy was last asked for groups to abort."""
        self._deadlines_checked: tuple[int, float] | None = None
        """Number of departed workers, and monotonic seconds, at the last check of lease deadlines."""
        self._waiting: tuple[tuple[int, int], float] | None = None
        """The (stage, window) waiting for weights, and the monotonic seconds of the wait's start; None
        without a wait.
        """

    def decide(self, now_s: float) -> Dispatched:
        """Returns every decision due at the monotonic time `now_s`, with the hold against further leases."""
        state = self._state
        spine = self._state.spine
        paused = Paused(spine.cause) if spine.status is Status.PAUSED else None
        if spine.spec is None or spine.stage < 0 or spine.status not in (Status.RUNNING, Status.PAUSED):
            return Dispatched((), paused or NoStage())
        if paused is not None:
            self._waiting = None
        stage = spine.stage_spec()
        self._liveness.tick(now_s)
        over = spine.stage_completed or is_explored(state, stage)
        given_up = {} if over or stage.kind == "train" else self._groups_to_give_up(stage, now_s)
        # Expire, close, complete, lease: room freed by an earlier one is leased by a later one, but only after folding.
        decisions = list(self._expire(over, now_s, given_up)) if over or self._look_due(now_s) else []
        decisions += self._close(over, given_up)
        decisions += complete_evals(state)
        if stage.pipeline and not over and not spine.stage_completed:
            decisions += lease_processing(state, stage, self._heard(now_s))
        if paused is not None or spine.stage_completed:
            return Dispatched(decisions, paused or NoStage())
        if given_up:  # the free room is known after folding
            return Dispatched(decisions)
        return self._lease(stage, over, now_s, decisions)

    def _look_due(self, now_s: float) -> bool:
        """True if lease deadlines have to be checked now: after a worker's departure, and every
        `EXPIRY_CHECK_INTERVAL_S` seconds; records the check.
        """
        departed = len(self._state.roster.gone)
        if (
            self._deadlines_checked is not None
            and self._deadlines_checked[0] == departed
            and now_s - self._deadlines_checked[1] < EXPIRY_CHECK_INTERVAL_S
        ):
            return False
        self._deadlines_checked = departed, now_s
        return True

    def _groups_to_give_up(self, stage: StageSpec, now_s: float) -> dict[UUID, GivenUp]:
        """Returns the groups to give up now, as too stale or as the slowest of an explore step, with reasons."""
        spine = self._state.spine
        stale = dict[UUID, GivenUp]()
        if self._abort_checked != (
            progress := (spine.stage, spine.planned, spine.version)
        ):  # otherwise no group has become staler
            stale = stale_groups(self._state, stage)
            self._abort_checked = progress
        return stale | groups_over(self._state, stage, self._liveness, now_s)

    def _close(self, over: bool, given_up: Mapping[UUID, GivenUp]) -> Iterator[Decision]:
        """Yields the closes due now, and drops the clocks of closed groups and their leases."""
        for decision in close_groups(self._state, stage_over=over, given_up=given_up):
            if isinstance(decision.event, GroupClosed):
                # Without this the clocks of closed groups would grow for the daemon's whole life.
                self._liveness.forget(decision.event.group)
                group = self._state.groups.open[decision.event.group]
                for lease in group.leases:
                    self._liveness.forget(lease)
                forget_processing(self._liveness, group)
            yield decision

    def _lease(self, stage: StageSpec, over: bool, now_s: float, decisions: list[Decision]) -> Dispatched:
        """Returns the decisions with all leases possible now, and the hold against further ones."""
        state = self._state
        heard = self._heard(now_s)
        if stage.kind == "train" or over:
            evals, evaluation = lease_evals(state, stage, heard)
            return Dispatched(decisions + evals, self._hold_when_over(stage, decisions), evaluation)
        isolation = Isolation(state, stage, heard)
        # Suspects first: the explorers reserved for them are in none of the lists below.
        decisions += lease_alone(state, stage, isolation)
        evals, evaluation = lease_evals(state, stage, isolation.others)
        fresh = fresh_explorers(state, stage, isolation.others)
        credits = Credits(state, fresh, stage.algorithm.repeat_times)
        leases, lease_hold = lease_groups(state, stage, credits, self._rows)
        overdue = [] if leases else self._overdue_events(stage, lease_hold, now_s)
        hold: DispatcherHold | None = None if overdue else lease_hold
        if not heard:
            hold = NoExplorers()
        elif isolation.waiting or isinstance(lease_hold, NoCredits):
            hold = _no_credits(heard, fresh, isolation, credits)
        decisions += evals + leases + overdue
        decisions += lease_stragglers(state, stage, credits, self._liveness, now_s)
        return Dispatched(decisions, hold, evaluation)

    def _heard(self, now_s: float) -> list[WorkerStarted]:
        """Returns the explorers with recent signs of life."""
        return [worker for worker in self._state.roster.explorers() if not self._liveness.silent(worker.worker, now_s)]

    def _hold_when_over(self, stage: StageSpec, decisions: Sequence[Decision]) -> DispatcherHold | None:
        """Returns the hold of a stage without further groups to lease; None for a stage with explorers in a turn with
        decisions.
        """
        if stage.kind == "train":
            return TrainsDataset()
        if decisions:
            return None
        return ClosesGroups(self._state.groups.to_close) if self._state.groups.to_close else StagePlanned()

    def _overdue_events(self, stage: StageSpec, hold: LeaseHold | None, now_s: float) -> list[Decision]:
        """Returns weights.overdue once a wait at a sync point exceeds `sync_timeout`, at most once per window;
        otherwise nothing.
        """
        if not isinstance(hold, AwaitsAnswer | AwaitsWeights) or hold.timeout_s is None:
            self._waiting = None
            return []
        stage_window = (self._state.spine.stage, hold.window)
        looked_s = self._liveness.looked_s(now_s)
        if self._waiting is None or self._waiting[0] != stage_window:
            self._waiting = stage_window, looked_s
        waited_s = looked_s - self._waiting[1]
        if waited_s < hold.timeout_s:
            return []
        return [Decision(overdue_of(self._state, stage, view_of(self._state, stage), hold, waited_s))]

    def _waits_for_weights(self, worker: UUID) -> bool:
        """True if the worker's latest heartbeat reports a state before its rollouts begin."""
        latest = self._liveness.latest.get(worker)
        return latest is not None and latest.state in _STATES_BEFORE_ROLLOUTS

    def _expire(self, over: bool, now_s: float, given_up: Container[UUID]) -> Iterator[Decision]:
        """Yields task.expired for each lease past its deadline, of a departed worker, or of a stage that is over;
        leases for the pipeline and for evaluations included.
        """
        departed = self._state.roster.gone
        for lease in self._state.groups.leases.values():
            if given_up and lease.group in given_up:
                continue
            if over:
                expired = TaskExpired(lease=lease.id, slot=lease.slot, reason=STAGE_ENDED)
            elif departed and (worker_exit := departed.get(lease.worker)) is not None:
                expired = _expired_with_worker(lease, worker_exit)
            elif self._liveness.overdue(lease.id, lease.deadline_s, now_s):
                reason = f"no progress within {lease.deadline_s} s"
                waits = self._waits_for_weights(lease.worker)
                reason = f"{reason}: its explorer waits for weights" if waits else reason
                # Excused: during a wait for weights nothing was tried, so no attempt of the group is spent.
                expired = TaskExpired(lease=lease.id, slot=lease.slot, reason=reason, excused=waits)
            else:
                continue
            self._liveness.forget(lease.id)
            yield Decision(expired, slot_partition(lease.slot))
        yield from expire_processing(self._state, self._liveness, now_s, stage_over=over)
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
    """Returns the hold of a turn in which no explorer has room; `fresh` are the explorers among `heard` with new enough
    weights.
    """
    return (NoneAlone if isolation.waiting else NoCredits)(
        explorers=len(heard),
        rollouts=credits.rollouts,
        kept=len(heard) - len(isolation.others),
        suspects=isolation.suspects,
        outdated=len(isolation.others) - len(fresh),
    )


_STATES_BEFORE_ROLLOUTS: Final = frozenset(
    {WorkerState.WAIT_WEIGHTS, WorkerState.WAIT_VERSION, WorkerState.LOAD_WEIGHTS, WorkerState.LOAD_FAILED}
)
"""States of an explorer that still waits for weights: the expiry of a lease in one of them is no attempt of its
rollouts.
"""

_EXCUSED_CODES: Final = frozenset(
    kind.code
    for kind in (ConfigError, DataError, DiskFullError, LogCorruptError, NotFoundError, UnreachableError, UsageError)
) | {""}
"""Exit codes without blame for the worker's tasks: the worker drained or refused, or disk or log were away."""


def _expired_with_worker(lease: Lease, worker_exit: Gone) -> TaskExpired:
    """Builds the task.expired of a lease whose worker left; only an unexcused departure counts as an attempt."""
    excused = not worker_exit.lost and worker_exit.code in _EXCUSED_CODES
    alone = "" if excused or not lease.alone else ", with nothing else to do"
    return TaskExpired(
        lease=lease.id,
        slot=lease.slot,
        reason=f"its worker left{alone}: {worker_exit.reason or 'it drained'}",
        worker_gone=True,
        excused=excused,
    )
