"""Batches: what is trained is decided once. Written by the planner, on the spine."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events.registry import CONTROLLER, PLANNER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Count, Difference, Finite, Index, Nanoseconds
from rftd.streams.log.log_place import ExperienceOffset, ReadOffset, TaskOffset


# Laid out as arrays: `limits.PLAN_EXPERIENCES` of these, and as many groups, must fit one record.
class ExperienceItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One experience of a batch and where its payload lies."""

    experience: UUID
    partition: Index
    """The partition of `rftd.experiences`."""
    offset: ExperienceOffset
    group: Index
    """Index in the batch's `groups`."""
    member: Index
    """Index in that group's members."""
    staleness_versions: Difference
    use: Index
    """1 for its first use."""


class RowItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One dataset row of a batch."""

    dataset: Index
    """Index in the batch's `datasets`."""
    row: Index
    epoch: Index


class GroupRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A closed group and where its `group.closed` lies: advantages are computed from it."""

    group: UUID
    partition: Index
    """The partition of `rftd.tasks`."""
    offset: TaskOffset


class ObservedAt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of what the planner had read of a partition when it decided (rule 6)."""

    stream: str
    partition: Index
    next_offset: ReadOffset


@event("batch.planned", stream=topics.EXPERIMENTS, owner=PLANNER)
class BatchPlanned(Event, frozen=True, kw_only=True):
    """The items of training step `step`, in order. Executed by the trainer, who selects nothing."""

    batch: UUID
    step: Index
    """The weight version that training it makes, counted over the whole experiment."""
    stage: Index
    experiences: tuple[ExperienceItem, ...] = ()
    rows: tuple[RowItem, ...] = ()
    datasets: tuple[str, ...] = ()
    """sha256 of each dataset that rows are of."""
    groups: tuple[GroupRef, ...] = ()
    observed: tuple[ObservedAt, ...]
    decided_at_ns: Nanoseconds
    incomplete: bool = False
    """True if `max_read_timeout` passed before the batch was full."""
    max_uses: Index = 1
    """An experience that was used less often may be planned again; 0 = always."""
    eligible_at_ns: Nanoseconds = 0
    """The reading of the clock from which they may be: `decided_at_ns` and the cooldown (rule 9)."""

    def dataset_of(self, row: RowItem) -> str:
        """The digest of the dataset that a row is of; empty if the event names none."""
        return self.datasets[row.dataset] if 0 <= row.dataset < len(self.datasets) else ""


@event("batch.abandoned", stream=topics.EXPERIMENTS, owner=PLANNER)
class BatchAbandoned(Event, frozen=True, kw_only=True):
    """The batch cannot run; its items return unused.

    Only before any generation has executed it, and then a step of it has no effect: the first on the spine counts.
    """

    batch: UUID
    step: Index
    code: str
    reason: str


class Uninformative(msgspec.Struct, frozen=True, array_like=True):
    """Groups that teach nothing: the lowest and the highest of their rewards, and what waits beside them."""

    lowest: Finite
    highest: Finite
    waiting: Count
    """Experiences that wait for the next batch and are not retired."""


@event("experience.retired", stream=topics.EXPERIMENTS, owner=PLANNER)
class ExperienceRetired(Event, frozen=True, kw_only=True):
    """These experiences will never be trained (again); the reason is the same for all."""

    experiences: tuple[UUID, ...]
    reason: str
    """`stale`, `group_incomplete`, `uninformative` (by the advantage function), `stage_ended`, `capacity`, `collected`
    (nothing is trained in its stage), `given_up`."""
    uses: Index
    decided_at_ns: Nanoseconds
    observed: tuple[ObservedAt, ...] = ()
    uninformative: Uninformative | None = None
    """Told with the reason of that name alone."""


@event("experience.prioritized", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperiencePrioritized(Event, frozen=True, kw_only=True):
    """The experiences of this group have another priority tag from here on. Written by the controller, on request."""

    group: UUID
    priority: Finite
    by: str = ""
    reason: str = ""


@event("experience.given_up", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperienceGivenUp(Event, frozen=True, kw_only=True):
    """Somebody says that an experience will never be read again: the planner retires it, and abandons its batch.

    Written by the controller, on request.
    """

    experience: UUID
    by: str = ""
    reason: str = ""
