"""Batches: the selection of experiences to train is decided once. Written by the planner, on the spine."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events.registry import CONTROLLER, PLANNER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Count, Difference, Finite, Index, Nanoseconds
from rftd.streams.log.marked import ExperienceOffset, ReadOffset, TaskOffset


# Laid out as arrays: `limits.PLAN_EXPERIENCES` of these, and as many groups, must fit one record.
class ExperienceItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An experience of a batch: position of the payload, group, staleness and number of the use."""

    experience: UUID
    partition: Index
    """The partition of `rftd.experiences`."""
    offset: ExperienceOffset
    group: Index
    """Index in the batch's `groups`."""
    member: Index
    """Index in the group's members."""
    staleness_versions: Difference
    use: Index
    """Number of the use, from 1."""


class RowItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One dataset row of a batch: dataset, row number and epoch."""

    dataset: Index
    """Index in the batch's `datasets`."""
    row: Index
    epoch: Index


class GroupRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A closed group used by the batch, and the position of its `group.closed`, which the trainer reads for
    advantages.
    """

    group: UUID
    partition: Index
    """The partition of `rftd.tasks`."""
    offset: TaskOffset


class ObservedAt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offset up to which the planner had read a partition before its decision."""

    stream: str
    partition: Index
    next_offset: ReadOffset


@event("batch.planned", stream=topics.EXPERIMENTS, owner=PLANNER)
class BatchPlanned(Event, frozen=True, kw_only=True):
    """The items of training step `step`, in order. Executed by the trainer exactly as planned."""

    batch: UUID
    step: Index
    """The weight version produced by training the batch, counted over the whole experiment."""
    stage: Index
    experiences: tuple[ExperienceItem, ...] = ()
    rows: tuple[RowItem, ...] = ()
    datasets: tuple[str, ...] = ()
    """sha256 of each dataset with rows in the batch."""
    groups: tuple[GroupRef, ...] = ()
    observed: tuple[ObservedAt, ...]
    decided_at_ns: Nanoseconds
    incomplete: bool = False
    """True if `max_read_timeout` passed before the batch was full."""
    max_uses: Index = 1
    """Maximum number of uses; an experience below it may be planned again. 0: unlimited."""
    eligible_at_ns: Nanoseconds = 0
    """The clock reading from which experiences may be used again: `decided_at_ns` and the cooldown."""

    def dataset_of(self, row: RowItem) -> str:
        """Returns the digest of a row's dataset; empty if the event names none."""
        return self.datasets[row.dataset] if 0 <= row.dataset < len(self.datasets) else ""


@event("batch.abandoned", stream=topics.EXPERIMENTS, owner=PLANNER)
class BatchAbandoned(Event, frozen=True, kw_only=True):
    """A planned batch abandoned because it cannot run; the items return unused.

    Written only before any generation has executed the batch; a later step of the batch has no effect: the first record
    on the spine counts.
    """

    batch: UUID
    step: Index
    code: str
    reason: str


class Uninformative(msgspec.Struct, frozen=True, array_like=True):
    """Rewards of groups without a learning signal."""

    lowest: Finite
    highest: Finite
    waiting: Count
    """Experiences waiting for the next batch and not retired."""


@event("experience.retired", stream=topics.EXPERIMENTS, owner=PLANNER)
class ExperienceRetired(Event, frozen=True, kw_only=True):
    """Experiences excluded from all further training, with a reason common to all and, for uninformative groups, the
    rewards.
    """

    experiences: tuple[UUID, ...]
    reason: str
    """`stale`, `group_incomplete`, `uninformative` (by the advantage function), `filtered by OPERATOR`, `stage_ended`,
    `capacity`, `collected` (nothing is trained in its stage), `given_up`."""
    uses: Index
    decided_at_ns: Nanoseconds
    observed: tuple[ObservedAt, ...] = ()
    uninformative: Uninformative | None = None
    """Set only for the reasons `uninformative` and `filtered by OPERATOR`."""


@event("experience.prioritized", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperiencePrioritized(Event, frozen=True, kw_only=True):
    """A new priority tag for the experiences of this group. Written by the controller, on request."""

    group: UUID
    priority: Finite
    by: str = ""
    reason: str = ""


@event("experience.given_up", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperienceGivenUp(Event, frozen=True, kw_only=True):
    """An experience declared permanently unreadable by a person: the planner retires it, and abandons its batch.

    Written by the controller, on request.
    """

    experience: UUID
    by: str = ""
    reason: str = ""
