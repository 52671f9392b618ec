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
    """Id of the experience."""
    partition: Index
    """The partition of `rftd.experiences`."""
    offset: ExperienceOffset
    """Offset of the experience's record."""
    group: Index
    """Index in the batch's `groups`."""
    member: Index
    """Index in the group's members."""
    staleness_versions: Difference
    """(step - 1) minus the oldest weight version of the experience."""
    use: Index
    """Number of the use, from 1."""


class RowItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One dataset row of a batch: dataset, row number and epoch."""

    dataset: Index
    """Index in the batch's `datasets`."""
    row: Index
    """Row of the dataset."""
    epoch: Index
    """Pass over the dataset, from 0."""


class GroupRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A closed group used by the batch, and the position of its `group.closed`, which the trainer reads for
    advantages.
    """

    group: UUID
    """Id of the group."""
    partition: Index
    """The partition of `rftd.tasks`."""
    offset: TaskOffset
    """Offset of the group's closing."""


class ObservedAt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offset up to which the planner had read a partition before its decision."""

    stream: str
    """Stream of the partition."""
    partition: Index
    """Number of the partition."""
    next_offset: ReadOffset
    """Offset of the next record."""


@event("batch.planned", stream=topics.EXPERIMENTS, owner=PLANNER)
class BatchPlanned(Event, frozen=True, kw_only=True):
    """The items of training step `step`, in order. Executed by the trainer exactly as planned."""

    batch: UUID
    """Id of the batch."""
    step: Index
    """The weight version produced by training the batch, counted over the whole experiment."""
    stage: Index
    """Index of the stage in the specification."""
    experiences: tuple[ExperienceItem, ...] = ()
    """Experiences to train, in order."""
    rows: tuple[RowItem, ...] = ()
    """Dataset rows to train, in order."""
    datasets: tuple[str, ...] = ()
    """sha256 of each dataset with rows in the batch."""
    groups: tuple[GroupRef, ...] = ()
    """Groups of the experiences."""
    observed: tuple[ObservedAt, ...]
    """Offsets read before the decision."""
    decided_at_ns: Nanoseconds
    """Clock reading of the decision, in nanoseconds since 1970."""
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
    """Id of the batch."""
    step: Index
    """Training step, as the weight version made by it."""
    code: str
    """Code of the error because of which the batch cannot run."""
    reason: str
    """Reason for the abandonment of the batch, in words for people."""


class Uninformative(msgspec.Struct, frozen=True, array_like=True):
    """Rewards of groups without a learning signal."""

    lowest: Finite
    """Lowest mean reward of a group."""
    highest: Finite
    """Highest mean reward of a group."""
    waiting: Count
    """Experiences waiting for the next batch and not retired."""


@event("experience.retired", stream=topics.EXPERIMENTS, owner=PLANNER)
class ExperienceRetired(Event, frozen=True, kw_only=True):
    """Experiences excluded from all further training, with a reason common to all and, for uninformative groups, the
    rewards.
    """

    experiences: tuple[UUID, ...]
    """Ids of the experiences."""
    reason: str
    """`stale`, `group_incomplete`, `uninformative` (by the advantage function), `filtered by OPERATOR`, `stage_ended`,
    `capacity`, `collected` (nothing is trained in its stage), `given_up`."""
    uses: Index
    """Number of plans that have named each of the experiences so far."""
    decided_at_ns: Nanoseconds
    """Clock reading of the decision, in nanoseconds since 1970."""
    observed: tuple[ObservedAt, ...] = ()
    """Offsets read before the decision."""
    uninformative: Uninformative | None = None
    """Set only for the reasons `uninformative` and `filtered by OPERATOR`."""


@event("experience.prioritized", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperiencePrioritized(Event, frozen=True, kw_only=True):
    """A new priority tag for the experiences of this group. Written by the controller, on request."""

    group: UUID
    """Id of the group."""
    priority: Finite
    """Priority tag."""
    by: str = ""
    """Name of the token used by the person."""
    reason: str = ""
    """Reason for the new priority tag, as given by the person; empty without one."""


@event("experience.given_up", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperienceGivenUp(Event, frozen=True, kw_only=True):
    """An experience declared permanently unreadable by a person: the planner retires it, and abandons its batch.

    Written by the controller, on request.
    """

    experience: UUID
    """Id of the experience."""
    by: str = ""
    """Name of the token used by the person."""
    reason: str = ""
    """Reason for giving the experience up, as given by the person; empty without one."""
