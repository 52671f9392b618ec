"""The projector's progress: positions, fences, ids of events that count once, and unusable records."""

from __future__ import annotations

from sqlalchemy import LargeBinary
from sqlmodel import Field

from rftd.storage.database.tables.base import CLUSTERED, LOCAL, Id, Int, IntKey, Key, LogOffset, Row, Text, TextKey


class Positions(Row, table=True):
    """The next offset to apply in one partition, and the chain value before it."""

    __tablename__ = "positions"
    __table_args__ = LOCAL

    stream: TextKey
    """Name of the stream."""
    partition: IntKey
    """Number of the partition."""
    next_offset: LogOffset
    """Offset of the next record to apply."""
    chain: bytes = Field(sa_type=LargeBinary)
    """Chain value of all records before the offset."""


class Fences(Row, table=True):
    """The owner of a role in one partition; `experiment` is empty for roles of the daemon."""

    __tablename__ = "fences"

    stream: TextKey
    """Name of the stream."""
    partition: IntKey
    """Number of the partition."""
    experiment: Key
    """Id of the experiment; empty for roles of the daemon."""
    role: TextKey
    """Name of the role."""
    epoch: Int
    """Epoch of the owner."""
    owner: Id
    """Id of the owner of the epoch."""
    fenced_ns: Int
    """Time of the fence, Unix time in nanoseconds."""
    fenced_partition: Int
    """Partition of the log with the record of the fence."""
    fenced_offset: LogOffset
    """Offset of the record of the fence in the partition."""


class Once(Row, table=True):
    """Ids of events whose repetition would change a row: the first occurrence in a partition counts."""

    __tablename__ = "once"
    __table_args__ = CLUSTERED

    stream: TextKey
    """Name of the stream."""
    partition: IntKey
    """Number of the partition."""
    event: Key
    """Id of the event."""
    applied_partition: Int
    """Partition of the log with the record of the first occurrence."""
    applied_offset: LogOffset
    """Offset of the record of the first occurrence in the partition."""


class DeadLetters(Row, table=True):
    """A pointer to a record unusable for a consumer; the record stays in the log."""

    __tablename__ = "dead_letters"
    __table_args__ = LOCAL

    consumer: TextKey
    """Name of the consumer."""
    stream: TextKey
    """Name of the stream of the unusable record."""
    partition: IntKey
    """Partition of the unusable record."""
    offset: IntKey
    """Offset of the unusable record."""
    code: Text
    """Code of the error."""
    reason: Text
    """Reason of the rejection, in words."""
    reported_partition: Int
    """Partition of the log with the record of the report."""
    reported_offset: LogOffset
    """Offset of the `record.dead_lettered` event; the record's own offset if the projector itself rejected the record.
    """


class Meta(Row, table=True):
    """Name-value pairs: `projections` has the version of each projection when the tables were filled, as JSON;
    `filled_s` the seconds taken to fill them.
    """

    __tablename__ = "meta"
    __table_args__ = LOCAL

    name: TextKey
    """Name of the pair."""
    value: Text
    """Text of the pair."""
