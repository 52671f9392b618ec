"""Leases and groups. Written by the dispatcher, but for offers; leases go to the partition of the worker's slot."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events.registry import CONTROLLER, DISPATCHER, NOBODY, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Count, Finite, Index, Milliseconds, Number, Rollouts
from rftd.streams.log.log_place import ExperienceOffset


@event("task.leased", stream=topics.TASKS, owner=DISPATCHER)
class TaskLeased(Event, frozen=True, kw_only=True):
    """One group of rollouts of one task, given to a worker slot. Consumed by the explorer in that slot.

    Row `row` of the stage's tasksets, counted on from one to the next, in epoch `epoch`; `rollouts` are the indices
    still to do: rollout i of the group has the id derive(group, "rollout", i).
    """

    lease: UUID
    slot: Index
    worker: UUID
    group: UUID
    sequence: Number
    """The group's place in its stage, from 0: the dataset position is a fold of it."""
    stage: Index
    row: Index
    epoch: Index
    rollouts: tuple[Rollouts, ...]
    repeat_times: Rollouts
    attempt: Index
    deadline_s: Finite
    min_version: Index
    """The rollout must begin on this weight version or a later one."""
    pinned: bool = False
    """The rollout begins on exactly `min_version`, and keeps it to its end: weights change only between groups."""
    digest: str = ""
    """sha256 of the bytes of the row's taskset; a worker that reads another dataset must refuse."""
    alone: bool = False
    """The worker has no other lease while it has this one: if it dies, it is known of which group."""
    timeout_s: Finite = 0.0
    """Longest attempt at one of its rollouts, which the explorer enforces; 0: the stage's `max_timeout_s`."""
    reissue: bool = False
    """Its rollouts are under way elsewhere too, where they are slow: the first completion of each wins. No attempt."""
    held_version: Index = -1
    """The weights that its worker was known to hold, or would load first: its rollouts begin on these or newer ones."""
    window: Index = -1
    """Groups of a stage between two sync points: they begin on one weight version. -1: of none."""
    place: Index = -1
    """Groups of the window that were begun before this one."""


@event("tasks.drawn", stream=topics.EXPERIMENTS, owner=DISPATCHER)
class TasksDrawn(Event, frozen=True, kw_only=True):
    """The rows of a taskset that its selector drew for the next places in it, before any of them is leased.

    Consumed by the dispatcher: what depends on rewards is decided once, and no restart decides it anew.
    """

    stage: Number
    taskset: Number
    """Index among the stage's tasksets."""
    first: Number
    """The place of the first row within the taskset, from 0; the others follow it."""
    rows: tuple[Number, ...]
    """Rows of the taskset, counted from its own first."""
    seen: Count = 0
    """The closed groups of the taskset whose rewards the selector was told."""


@event("tasks.offered", stream=topics.EXPERIENCES, owner=NOBODY)
class TasksOffered(Event, frozen=True, kw_only=True):
    """The stage's taskset has so many rows by now: they come while it runs. Consumed by the dispatcher. Key: the stage.

    Written by explorers that serve, once the rows are on disk, and again whenever one starts: the largest counts.
    """

    stage: Number
    rows: Count
    history: str = ""
    """The id, in hex, of the history that holds the rows."""
    digest: str = ""
    """Hex sha256, chained over these rows of the history: an older or another one put in its place is noticed."""


def note_offer(offers: dict[int, TasksOffered], offered: TasksOffered) -> None:
    """Keeps the largest offer of each stage, of equal ones the first."""
    largest = offers.get(offered.stage)
    if largest is None or offered.rows > largest.rows:
        offers[offered.stage] = offered


@event("tasks.added", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class TasksAdded(Event, frozen=True, kw_only=True):
    """Tasks appended to a queue. Written by the controller, on request.

    Rows are numbered on in the order of the spine, so that a row names the same task for every reader.
    """

    stage: Index
    tasks: tuple[str, ...]
    """Each is a JSON object, the row of a taskset."""
    by: str = ""


@event("tasks.ended", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class TasksEnded(Event, frozen=True, kw_only=True):
    """No task is added to a queue any more. Written by the controller, on request.

    The stage ends with the step that takes in the last task, or the next one if that is planned; a batch that is not
    full is filled with the first tasks of the queue.
    """

    stage: Index
    by: str = ""
    reason: str = ""


@event("eval.leased", stream=topics.TASKS, owner=DISPATCHER)
class EvalLeased(Event, frozen=True, kw_only=True):
    """A range of rows of a held-out taskset, to be answered by one pinned weight version."""

    lease: UUID
    slot: Index
    worker: UUID
    eval: UUID
    stage: Index
    taskset: Index
    """Index in the stage's `evals`."""
    row_start: Index
    row_end: Index
    version: Index
    generation: Index
    attempt: Index
    deadline_s: Finite
    digest: str = ""


@event("task.expired", stream=topics.TASKS, owner=DISPATCHER)
class TaskExpired(Event, frozen=True, kw_only=True):
    """A lease (of a group or an eval range) ended without completion; it is given out anew."""

    lease: UUID
    slot: Index
    reason: str
    worker_gone: bool = False
    """The worker left or died; unless the group was leased alone, that is no attempt of it."""
    excused: bool = False
    """No attempt, and no loss either: the worker left for a reason of its own, in good order or for want of a disk or a
    log; or it has waited for weights ever since."""


@event("task.retried", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class TaskRetried(Event, frozen=True, kw_only=True):
    """A task whose group closed without enough members is given out once more. Written by the controller, on request.

    The new group is of the same row and has the same sequence; its attempts are counted from the beginning.
    """

    group: UUID
    """The one that failed."""
    retry: UUID
    """The new one; it follows from the other, so that a second request changes nothing."""
    stage: Index
    sequence: Number
    row: Index
    epoch: Index
    repeat_times: Rollouts
    min_version: Index
    pinned: bool = False
    by: str = ""
    reason: str = ""


# Laid out as an array: `limits.GROUP_MEMBERS` of these must fit the record that closes their group.
class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One experience of a closed group, and where its payload lies."""

    experience: UUID
    rollout: Rollouts
    partition: Index
    """The partition of `rftd.experiences`."""
    offset: ExperienceOffset
    reward: Finite
    priority: Finite
    tokens: Count
    oldest_version: Index
    newest_version: Index


@event("group.closed", stream=topics.TASKS, owner=DISPATCHER)
class GroupClosed(Event, frozen=True, kw_only=True):
    """Every rollout of the group is terminal, or its deadline passed; advantages come from these members.

    The records of `members` lie below this event's decision; a later completion of a missing rollout has no effect.
    """

    group: UUID
    sequence: Index
    stage: Index
    members: tuple[Member, ...]
    failed: Rollouts
    code: str = ""
    """The error code of the last failure, if any."""
    reason: str = ""
    busy_ms: Milliseconds = 0
    """Milliseconds that its members took together: time-outs that follow recent durations are made from them."""
    taskset: Index = -1
    """Index of its taskset, where the rewards of its rows decide which are drawn next; -1: of another."""
    row: Index = -1
    """The row of that taskset, counted from its own first."""
