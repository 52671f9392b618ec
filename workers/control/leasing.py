"""Leases of groups ready to start: the stage's policy admits groups, and the workers' capacity gives credits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from uuid import UUID

from rftd.ops import limits
from rftd.ops.ids import derive
from rftd.streams.events.task import TaskLeased, TasksDrawn
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.group import Group
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.decision import Decision, slot_partition
from rftd.streams.log.group_id import group_id
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import is_queue, task_place, tasksets_of
from rftd.workers.control.closing import leasable, left_to_collect, loose_groups
from rftd.workers.control.hold import ReadsColumns
from rftd.workers.control.holds import (
    AllGivenOut,
    LeaseHold,
    NoCredits,
    NoneAdded,
    NoneOffered,
    PolicyFull,
)
from rftd.workers.control.isolation import Isolation, is_suspect
from rftd.workers.control.planner import view_of
from rftd.workers.control.policies.policy import PolicyView
from rftd.workers.control.policies.registry import policy_of
from rftd.workers.control.selectors.task_rows import TaskRows
from rftd.workers.control.windows import Ask, Begin, admission_view, beginnings, request_of

LEASE_GRACE_S = 30.0
"""Seconds between a rollout's time-out, enforced by its explorer, and the deadline of its lease."""


def attempt_timeout_s(state: RunState, stage: StageSpec) -> float:
    """Returns the time-out in seconds of a rollout leased now: `max_timeout`, or less once recent durations
    are known.
    """
    spec = stage.rollout
    dynamic = spec.dynamic_timeout
    groups = state.groups
    if not dynamic.enable or groups.recent_stage != state.spine.stage:
        return spec.max_timeout_s
    mean_s = groups.mean_duration_s
    if mean_s is None or groups.closed_in_stage < dynamic.warmup_min_steps * stage.batch_size:
        return spec.max_timeout_s
    return min(spec.max_timeout_s, max(dynamic.ratio * mean_s, limits.DYNAMIC_TIMEOUT_LEAST_S))


class Credits:
    """Number of rollouts that each explorer can take now: free slots and `ahead` more, so that no slot runs dry."""

    def __init__(self, state: RunState, explorers: list[WorkerStarted], ahead: int) -> None:
        """Counts the free slots of `explorers`; each may take `ahead` rollouts more than its slots."""
        self._ahead = ahead
        """Number of rollouts that each explorer may take beyond its slots."""
        load = state.groups.load
        self._free = {worker.worker: worker.capacity + ahead - load.get(worker.worker, 0) for worker in explorers}
        """Number of rollouts that each explorer can still take, by the explorer's id."""
        self._workers = {worker.worker: worker for worker in explorers}
        """Explorers by worker."""
        self._load = load
        """Number of unfinished rollouts leased to each explorer before this turn."""
        self._taken = 0
        """Number of rollouts reserved in this turn."""

    @property
    def most(self) -> int:
        """Largest number of rollouts that any one explorer can take."""
        return max(self._free.values(), default=0)

    def take(self, rollouts: int) -> WorkerStarted | None:
        """Reserves `rollouts` at the explorer with the most credits and returns the explorer; None if no explorer has
        enough.
        """
        # The lowest slot among equals: the choice follows from the state, so a restarted daemon repeats it.
        best = max(self._free, key=lambda id: (self._free[id], -self._workers[id].slot), default=None)
        if best is None or self._free[best] < rollouts:
            return None
        return self._charge(best, rollouts)

    def take_idle(self, rollouts: int, *, but: UUID) -> WorkerStarted | None:
        """Reserves `rollouts` at an explorer other than `but` with a free slot for each, and returns the explorer; None
        without one.
        """
        elsewhere = [id for id in self._free if id != but and self._free[id] - self._ahead >= rollouts]
        best = max(elsewhere, key=lambda id: (self._free[id], -self._workers[id].slot), default=None)
        return None if best is None else self._charge(best, rollouts)

    @property
    def rollouts(self) -> int:
        """Number of unfinished rollouts leased to explorers, including leases decided in this turn."""
        return sum(self._load.values()) + self._taken

    def no_credits_hold(self) -> NoCredits:
        """Returns the hold for explorers without credits."""
        return NoCredits(len(self._workers), self.rollouts)

    def _charge(self, worker: UUID, rollouts: int) -> WorkerStarted:
        """Subtracts `rollouts` from a worker's credits, and returns the worker."""
        self._free[worker] -= rollouts
        self._taken += rollouts
        return self._workers[worker]


def admitted(state: RunState, stage: StageSpec, view: PolicyView) -> int:
    """Returns how many groups may start now: as many as the stage's policy admits (in an explore stage: as remain to be
    collected) and available tasks allow.
    """
    if stage.kind == "explore":
        by_policy = left_to_collect(state, stage)
    else:
        by_policy = policy_of(stage.policy).admit(admission_view(stage, view))
    available = available_rows(state, stage)
    return (
        by_policy
        if available is None
        else min(by_policy, max(0, available - state.groups.next_sequence.get(state.spine.stage, 0)))
    )


def available_rows(state: RunState, stage: StageSpec) -> int | None:
    """Returns the number of tasks that have arrived so far, for a stage whose tasks are added or committed by clients.

    None for a stage with a taskset, whose rows are all available from the beginning, and for an ended queue with rows.
    """
    index = state.spine.stage
    if stage.serving is not None:
        return state.groups.offered_rows(index)
    queue = state.spine.queues.of(index)
    # An ended queue is a dataset like any other: a batch not filled by its tasks takes the first ones again.
    return queue.rows if is_queue(stage) and not (queue.ended and queue.rows) else None


def lease_groups(
    state: RunState, stage: StageSpec, credits: Credits, rows: TaskRows | None = None
) -> tuple[list[Decision], LeaseHold | None]:
    """Returns leases of expired rollouts first, then of new groups admitted by the policy, and the hold against further
    ones.

    The hold is None if a request for weights or a draw of rows has to be folded first.
    """
    leases: list[Decision] = []
    for group in loose_groups(state):
        if not (rollouts := leasable(stage, group)) or is_suspect(group):
            continue  # nothing is missing, or the group is leased alone
        if not _lease_in_parts(leases, state, stage, credits, group, rollouts):
            return leases, credits.no_credits_hold()
    return leases, _lease_new(leases, state, stage, credits, rows or TaskRows(state))


def lease_alone(state: RunState, stage: StageSpec, isolation: Isolation) -> Iterator[Decision]:
    """Yields leases of suspect groups (workers died during them), each to an explorer reserved for the group."""
    for worker, group in isolation.ready:
        yield next_lease(state, stage, worker, group, leasable(stage, group), alone=True)


def parts_of(stage: StageSpec, rollouts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yields the rollouts in parts of at most `lease_rollouts`, one part for each lease."""
    part_size = stage.rollout.lease_rollouts or max(1, len(rollouts))
    return (rollouts[start : start + part_size] for start in range(0, len(rollouts), part_size))


def _lease_in_parts(
    leases: list[Decision],
    state: RunState,
    stage: StageSpec,
    credits: Credits,
    group: Group,
    rollouts: tuple[int, ...],
) -> bool:
    """Appends a lease for each part of the rollouts to `leases`; returns False if a part finds no explorer with room,
    else True.
    """
    for number, part_rollouts in enumerate(parts_of(stage, rollouts)):
        worker = credits.take(len(part_rollouts))
        if worker is None:
            return False
        leases.append(next_lease(state, stage, worker, group, part_rollouts, number=number))
    return True


def _lease_new(
    leases: list[Decision], state: RunState, stage: StageSpec, credits: Credits, rows: TaskRows
) -> LeaseHold | None:
    """Adds the leases of new groups, and returns the hold against further ones."""
    view = view_of(state, stage)
    sequences = sequences_to_lease(state)
    least = min(stage.rollout.lease_rollouts or stage.algorithm.repeat_times, stage.algorithm.repeat_times)
    begun = 0
    for begin in islice(beginnings(state, stage, view), admitted(state, stage, view)):
        if isinstance(begin, Ask):
            leases.append(Decision(request_of(state, begin)))
            return None
        if not isinstance(begin, Begin):
            return begin
        if credits.most < least:
            return credits.no_credits_hold()
        sequence = next(sequences)
        task = rows.row_of(stage, sequence)
        if isinstance(task, TasksDrawn):
            leases.append(Decision(task))
            return None
        if isinstance(task, ReadsColumns):
            return task
        group = _new_group(state, stage, sequence, task, begin)
        if not _lease_in_parts(leases, state, stage, credits, group, group.missing):
            return credits.no_credits_hold()  # parts without room are leased later, like those of expired leases
        begun += 1
    available = available_rows(state, stage)
    if available is not None and begun >= available - state.groups.next_sequence.get(state.spine.stage, 0):
        return NoneAdded(available) if is_queue(stage) else NoneOffered(available)
    if stage.kind == "explore":
        return AllGivenOut(state.groups.to_close + begun)
    in_flight = view.inflight_rollouts + begun * stage.algorithm.repeat_times
    return PolicyFull(view.planned_experiences, view.waiting_experiences, in_flight)


def sequences_to_lease(state: RunState) -> Iterator[int]:
    """Yields the dataset positions of the stage's next groups, ascending.

    A fork first repeats the unfinished groups of the history shared with its parent. Positions ascend, so the group
    leased last shows the progress.
    """
    spine = state.spine
    position = state.groups.next_sequence.get(spine.stage, 0)
    if spine.forked is not None and spine.shared_steps:
        yield from (sequence for sequence in spine.forked.redo if sequence >= position)
        # Behind the shared history, unless the fork itself is already further.
        position = max(position, spine.forked.next_sequence)
    yield from count(position)


def _new_group(state: RunState, stage: StageSpec, sequence: int, task: tuple[int, int], begin: Begin) -> Group:
    """Returns the group of a task before its first lease."""
    group = Group(group_id(state.experiment, state.spine.stage, sequence))
    group.sequence = sequence
    group.stage = state.spine.stage
    group.row, group.epoch = task
    group.repeat_times = stage.algorithm.repeat_times
    group.min_version = begin.version
    group.pinned = begin.window >= 0
    group.window = begin.window
    group.place = begin.place
    return group


def next_lease(
    state: RunState,
    stage: StageSpec,
    worker: WorkerStarted,
    group: Group,
    rollouts: tuple[int, ...],
    *,
    number: int = 0,
    alone: bool = False,
    reissue: bool = False,
) -> Decision:
    """Returns a lease of rollouts of the group; `number` counts the leases of the group decided before in this turn.

    `alone` keeps the worker free of other work; `reissue` marks a second lease of slow rollouts.
    """
    attempt = group.attempts + 1 + number
    timeout_s = attempt_timeout_s(state, stage)
    # A window's weights may be retired by the time its group is leased again: newer ones serve then.
    pinned = group.pinned and state.weights.of_version(group.min_version, state.spine) is not None
    event = TaskLeased(
        # Derived from group and attempt: a daemon that crashed before the write repeats the same lease, and makes no
        # second one.
        lease=derive(group.id, "lease", attempt),
        slot=worker.slot,
        worker=worker.worker,
        group=group.id,
        sequence=group.sequence,
        stage=group.stage,
        row=group.row,
        epoch=group.epoch,
        rollouts=rollouts,
        repeat_times=group.repeat_times,
        attempt=attempt,
        deadline_s=timeout_s + LEASE_GRACE_S,
        min_version=group.min_version,
        pinned=pinned,
        digest=tasksets_of(stage)[task_place(stage, group.row).taskset].digest,
        alone=alone,
        timeout_s=timeout_s,
        reissue=reissue,
        held_version=held_version(state, worker),
        window=group.window,
        place=group.place,
    )
    return Decision(event, slot_partition(worker.slot))


def held_version(state: RunState, worker: WorkerStarted) -> int:
    """Returns the weight version the worker loaded last; before its first load, the newest published one (or 0)."""
    loaded = state.weights.activated.get(worker.worker)
    if loaded is not None:
        return loaded[0]
    newest = state.weights.newest(state.spine)
    return newest.version if newest is not None else 0
