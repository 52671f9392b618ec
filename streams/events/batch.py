"""What is trained, decided once. Written by the planner, on the spine."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams import topics
from rftd.streams.events.registry import Event, event


class ExperienceItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One experience of a batch and where its payload lies."""

    experience: UUID
    partition: int
    """Of `rftd.experiences`."""
    offset: int
    group: int
    """Index in the batch's `groups`."""
    member: int
    """Index in that group's members."""
    staleness_versions: int
    use: int
    """1 for its first use."""


class RowItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One dataset row of a batch."""

    digest: str
    """sha256 of the dataset."""
    row: int
    epoch: int


class GroupRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A closed group and where its `group.closed` lies: advantages are computed from it."""

    group: UUID
    partition: int
    """Of `rftd.tasks`."""
    offset: int


class ObservedAt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far the planner had read a partition when it decided."""

    stream: str
    partition: int
    next_offset: int


@event("batch.planned", stream=topics.EXPERIMENTS)
class BatchPlanned(Event, frozen=True, kw_only=True):
    """The items of training step `step`, in order. Executed by the trainer, who selects nothing."""

    batch: UUID
    step: int
    """The weight version that training it makes, counted over the whole experiment."""
    stage: int
    experiences: tuple[ExperienceItem, ...] = ()
    rows: tuple[RowItem, ...] = ()
    groups: tuple[GroupRef, ...] = ()
    observed: tuple[ObservedAt, ...]
    decided_at_ns: int
    incomplete: bool = False
    """True if `max_read_timeout` passed before the batch was full."""
    max_uses: int = 1
    """An experience that was used less often may be planned again; 0 = always."""
    eligible_at_ns: int = 0
    """From this reading of the clock on: `decided_at_ns` and the cooldown (rule 9)."""


@event("batch.abandoned", stream=topics.EXPERIMENTS)
class BatchAbandoned(Event, frozen=True, kw_only=True):
    """The batch cannot run; its items return unused."""

    batch: UUID
    step: int
    code: str
    reason: str


@event("experience.retired", stream=topics.EXPERIMENTS)
class ExperienceRetired(Event, frozen=True, kw_only=True):
    """These experiences will never be trained (again); the reason is the same for all."""

    experiences: tuple[UUID, ...]
    reason: str
    """`stale`, `group_incomplete`, `uninformative` (by the advantage function), `stage_ended`, `capacity`, `collected`
    (nothing is trained in its stage)."""
    uses: int
    decided_at_ns: int
    observed: tuple[ObservedAt, ...] = ()


@event("experience.prioritized", stream=topics.EXPERIMENTS)
class ExperiencePrioritized(Event, frozen=True, kw_only=True):
    """The experiences of this group have another priority tag from here on. Written by the controller, on request."""

    group: UUID
    priority: float
    by: str = ""
    reason: str = ""
