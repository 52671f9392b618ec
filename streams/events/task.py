"""Leases and groups. Written by the dispatcher, except offers; leases go to the partition of the worker's slot."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events.registry import CONTROLLER, DISPATCHER, NOBODY, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Count, Finite, Index, Integer, Milliseconds, Number, Rollouts
from rftd.streams.log.marked import ExperienceOffset


@event("task.leased", stream=topics.TASKS, owner=DISPATCHER)
class TaskLeased(Event, frozen=True, kw_only=True):
    """One group of rollouts of one task, leased to a worker slot. Consumed by the explorer in the slot.

    Row `row` of the stage's tasksets, counted on from one to the next, in epoch `epoch`; `rollouts` are the indices
    still to do: rollout i of the group has the id derive(group, "rollout", i).
    """

    lease: UUID
    """Id of the lease."""
    slot: Index
    """Slot of the worker."""
    worker: UUID
    """Id of the worker."""
    group: UUID
    """Id of the group."""
    sequence: Number
    """The group's number in its stage, from 0: the dataset position is a fold of it."""
    stage: Index
    """Index of the stage in the specification."""
    row: Index
    """Row of the taskset."""
    epoch: Index
    """Pass over the dataset, from 0."""
    rollouts: tuple[Rollouts, ...]
    """Numbers of the leased rollouts."""
    repeat_times: Rollouts
    """Number of rollouts in the group."""
    attempt: Index
    """Number of the lease among the leases of its group, from 1."""
    deadline_s: Finite
    """Seconds without progress after which the lease expires."""
    min_version: Index
    """The lowest weight version for beginning the rollout."""
    pinned: bool = False
    """True if the rollout runs on exactly `min_version` to its end: weights change only between groups."""
    digest: str = ""
    """sha256 of the bytes of the row's taskset; a worker with another dataset must refuse the lease."""
    alone: bool = False
    """True if the worker gets no other lease meanwhile: its death can be attributed to this group."""
    timeout_s: Finite = 0.0
    """Time limit of an attempt at one rollout, enforced by the explorer; 0: the stage's `max_timeout_s`."""
    reissue: bool = False
    """True if the rollouts are slow under another lease: the first completion of each wins. Not counted as an attempt.
    """
    held_version: Index = -1
    """The weights known to be loaded, or loaded first, by the worker: its rollouts begin on these or newer ones."""
    window: Index = -1
    """Number of the window, the groups of a stage between two sync points, on one weight version; -1: none."""
    place: Index = -1
    """Number of the window's groups begun before this one."""


@event("tasks.drawn", stream=topics.EXPERIMENTS, owner=DISPATCHER)
class TasksDrawn(Event, frozen=True, kw_only=True):
    """The rows drawn by a taskset's selector for the next tasks, before any of the tasks is leased.

    Consumed by the dispatcher: a choice by rewards is decided once, and never again after a restart.
    """

    stage: Number
    """Index of the stage in the specification."""
    taskset: Number
    """Index among the stage's tasksets."""
    first: Number
    """The number of the first row's draw within the taskset, from 0; the other rows follow."""
    rows: tuple[Number, ...]
    """Rows of the taskset, counted from its own first."""
    seen: Count = 0
    """Number of the taskset's closed groups known to the selector."""


@event("tasks.offered", stream=topics.EXPERIENCES, owner=NOBODY)
class TasksOffered(Event, frozen=True, kw_only=True):
    """The number of rows of a taskset growing during its stage. Consumed by the dispatcher. Key: the stage.

    Written by serving explorers, once the rows are on disk, and again at each start of one: the largest counts.
    """

    stage: Number
    """Index of the stage in the specification."""
    rows: Count
    """Number of rows offered so far, counted from the taskset's first row."""
    history: str = ""
    """The id, in hex, of the history with the rows."""
    digest: str = ""
    """Hex sha256, chained over these rows of the history: detects an older or another history in its place."""


def note_offer(offers: dict[int, TasksOffered], offered: TasksOffered) -> None:
    """Stores an offer if it has more rows than the one stored for its stage."""
    largest = offers.get(offered.stage)
    if largest is None or offered.rows > largest.rows:
        offers[offered.stage] = offered


@event("tasks.added", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class TasksAdded(Event, frozen=True, kw_only=True):
    """Tasks appended to a queue. Written by the controller, on request.

    Rows are numbered on in the order of the spine: a row number means one task for every reader.
    """

    stage: Index
    """Index of the stage in the specification."""
    tasks: tuple[str, ...]
    """JSON objects, each the row of a taskset."""
    by: str = ""
    """Name of the token used by the person."""


@event("tasks.ended", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class TasksEnded(Event, frozen=True, kw_only=True):
    """The end of a queue: no task is added any more. Written by the controller, on request.

    The stage ends with the step including the last task, or the next step if already planned; an incomplete batch is
    filled with the first tasks of the queue.
    """

    stage: Index
    """Index of the stage in the specification."""
    by: str = ""
    """Name of the token used by the person."""
    reason: str = ""
    """Reason for the end of the queue, as given by the person; empty without one."""


@event("eval.leased", stream=topics.TASKS, owner=DISPATCHER)
class EvalLeased(Event, frozen=True, kw_only=True):
    """A range of rows of a held-out taskset, to be answered by one pinned weight version."""

    lease: UUID
    """Id of the lease."""
    slot: Index
    """Slot of the worker."""
    worker: UUID
    """Id of the worker."""
    eval: UUID
    """Id of the evaluation."""
    stage: Index
    """Index of the stage in the specification."""
    taskset: Index
    """Index in the stage's `evals`."""
    row_start: Index
    """First row of the range."""
    row_end: Index
    """Row after the range."""
    version: Index
    """Weight version."""
    generation: Index
    """Generation of the trainer."""
    attempt: Index
    """Number of the lease among the leases of its range of rows, from 1."""
    deadline_s: Finite
    """Seconds without progress after which the lease expires."""
    digest: str = ""
    """The sha256 of the taskset's bytes."""


@event("task.expired", stream=topics.TASKS, owner=DISPATCHER)
class TaskExpired(Event, frozen=True, kw_only=True):
    """A lease (of a group or an eval range) ended without completion, with the reason; the work is leased again."""

    lease: UUID
    """Id of the lease."""
    slot: Index
    """Slot of the worker."""
    reason: str
    """Reason for the end of the lease, in words for people."""
    worker_gone: bool = False
    """True if the worker left or died; unless the group was leased alone, not counted as an attempt."""
    excused: bool = False
    """Neither an attempt nor a loss: the worker left for a reason unrelated to the task, in good order or for want of a
    disk or a log; or it only waited for weights.
    """


@event("task.retried", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class TaskRetried(Event, frozen=True, kw_only=True):
    """A second chance for a task whose group closed without enough members. Written by the controller, on request.

    The new group has the same row and sequence; its attempts are counted from the beginning.
    """

    group: UUID
    """The failed group."""
    retry: UUID
    """The new group; its id is derived from the failed one's, so a second request changes nothing."""
    stage: Index
    """Index of the stage in the specification."""
    sequence: Number
    """Number of the failed group in the group's stage."""
    row: Index
    """Row of the taskset."""
    epoch: Index
    """Pass over the dataset, from 0."""
    repeat_times: Rollouts
    """Number of rollouts in the group."""
    min_version: Index
    """Oldest weight version for beginning a rollout."""
    pinned: bool = False
    """True if rollouts use exactly `min_version`."""
    by: str = ""
    """Name of the token used by the person."""
    reason: str = ""
    """Reason for the retry, as given by the person; empty without one."""


# Laid out as an array: `limits.GROUP_MEMBERS` of these must fit the record that closes their group.
class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One experience of a closed group: the position of the payload, reward, priority, length and weight versions."""

    experience: UUID
    """Id of the experience."""
    rollout: Rollouts
    """Number of the rollout in its group, from 0."""
    partition: Index
    """The partition of `rftd.experiences`."""
    offset: ExperienceOffset
    """Offset of the experience's record."""
    reward: Finite
    """Reward of the rollout."""
    priority: Finite
    """Priority tag of the experience."""
    tokens: Count
    """Number of tokens, prompt included."""
    oldest_version: Index
    """Oldest weight version of a response token."""
    newest_version: Index
    """Newest weight version of a response token."""


@event("group.leased", stream=topics.TASKS, owner=DISPATCHER)
class GroupLeased(Event, frozen=True, kw_only=True):
    """A finished group leased to an explorer, which runs the stage's experience pipeline on it."""

    lease: UUID
    """Id of the lease."""
    slot: Index
    """Slot of the worker."""
    worker: UUID
    """Id of the worker."""
    group: UUID
    """Id of the group."""
    stage: Index
    """Index of the stage in the specification."""
    members: tuple[Member, ...]
    """Members of the group."""
    attempt: Index
    """Number of the group's lease for the pipeline, from 1."""
    deadline_s: Finite
    """Seconds without progress after which the lease expires."""


class MemberVerdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The experience pipeline's verdict on one member of a group; the experience keeps the produced reward."""

    reward: Finite
    """The reward after the pipeline, for advantages."""
    masked: bool = False
    """True if none of the experience's tokens is trained."""
    dropped_by: Integer = -1
    """Index of the operator that removed the experience, in the stage's pipeline; -1 for a kept experience."""


@event("group.closed", stream=topics.TASKS, owner=DISPATCHER)
class GroupClosed(Event, frozen=True, kw_only=True):
    """The end of a group: every rollout is terminal, or its deadline passed; advantages come from these members.

    The records of `members` lie below this event's decision; a later completion of a missing rollout has no effect.
    """

    group: UUID
    """Id of the group."""
    sequence: Index
    """Number of the group in its stage, from 0."""
    stage: Index
    """Index of the stage in the specification."""
    members: tuple[Member, ...]
    """Experiences of the group."""
    failed: Rollouts
    """Number of failed rollouts."""
    code: str = ""
    """The error code of the last failure, if any."""
    reason: str = ""
    """Reason of the last failure; empty without one."""
    busy_ms: Milliseconds = 0
    """Total milliseconds of its members' rollouts: the basis of time-outs following recent durations."""
    taskset: Index = -1
    """Index of its taskset, if the rewards of the taskset's rows decide the next draws, or if a taskset of the stage
    has an algorithm of its own; else -1.
    """
    row: Index = -1
    """The row of the taskset, counted from its own first."""
    verdicts: tuple[MemberVerdict, ...] = ()
    """The experience pipeline's verdict on each member; empty without a pipeline."""
    pipeline_metrics: dict[str, Finite] = {}
    """Figures of the pipeline's operators, by name."""

    @property
    def trained_members(self) -> tuple[Member, ...]:
        """The members kept by the experience pipeline, with their rewards after it; all members without a pipeline."""
        if not self.verdicts:
            return self.members
        return tuple(
            msgspec.structs.replace(member, reward=verdict.reward)
            for member, verdict in zip(self.members, self.verdicts, strict=True)
            if verdict.dropped_by < 0
        )

    def __post_init__(self) -> None:
        if self.verdicts and len(self.verdicts) != len(self.members):
            raise ValueError(f"{len(self.verdicts)} verdicts on {len(self.members)} members")
