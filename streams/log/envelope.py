"""The envelope: CloudEvents attributes around a payload, before (`Draft`) and after (`Record`) the append."""

from __future__ import annotations

from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.streams.events.registry import Event
from rftd.streams.log.topics import Partition

# `array_like`: the order of the fields is the format on disk and on the wire. `gc=False`: the collector skips these
# objects, the most numerous of all; nothing in them may refer back to them.


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The attributes of an event. Fields are only ever added at the end, with a default."""

    id: UUID
    """Identity: appending an id again has no effect and returns the first position."""
    type: str
    """CloudEvents `type`, for example `experience.produced`."""
    version: Annotated[int, Meta(ge=0, le=1 << 31)]
    """Version of the payload's schema."""
    experiment: UUID | None
    """CloudEvents `subject`; None for events about workers and the daemon."""
    source: str
    """The writer: `daemon`, `daemon/ID`, `explorer/ID` or `trainer/ID` (`rftd.streams.log.writers`)."""
    time_ns: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """Time of writing, for people; no fold compares it with the present."""
    role: str = ""
    """The leased role of the writer (planner, dispatcher, trainer, controller); empty for roles without a lease."""
    epoch: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """The epoch of the writer's role; a record under another epoch than that of the last fence in its partition has no
    effect.
    """
    causation: UUID | None = None
    """The id of the event's cause."""
    correlation: UUID | None = None
    """The id of the event's group or batch, across streams."""
    traceparent: str | None = None
    """W3C trace context of the event's creation."""


class Draft(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An encoded event to be appended; `head` and `value` are stored and hashed unchanged."""

    partition: Partition
    """The partition to which it will be appended."""
    id: UUID
    """Id of the event, by which a repeated append is recognised."""
    head: bytes
    """The attributes (`Head`), encoded."""
    value: bytes
    """The event, encoded."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes, as counted against `limits.RECORD_SIZE_BYTES`."""
        return len(self.head) + len(self.value)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An encoded event at its position in the log."""

    partition: Partition
    offset: int
    """Gapless from 0 on the embedded log, monotone on Kafka."""
    chain: bytes
    """blake2b-16 of the previous record's chain (on Kafka: of nothing) and of this record; see `streams.log.chain`."""
    head: bytes
    """The attributes (`Head`), encoded."""
    value: bytes
    thin: bool = False
    """True if the payload was dropped: `value` names its arrays by their sha256, and `chain` covers the original value.
    """


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """A decoded event with its position and attributes, upcast to the current version of its type."""

    partition: Partition
    offset: int
    head: Head
    event: Event


class Stretch(NamedTuple):
    """A range of offsets [first, end) of a partition."""

    first: int
    """First offset of the range."""
    end: int
    """The offset after the last one of the range."""


class Position(NamedTuple):
    """The position of one record; as text `stream/partition@offset`."""

    partition: Partition
    """The record's partition."""
    offset: int
    """Number of the record within its partition."""

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"
