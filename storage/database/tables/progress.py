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
    partition: IntKey
    next_offset: LogOffset
    chain: bytes = Field(sa_type=LargeBinary)


class Fences(Row, table=True):
    """The owner of a role in one partition; `experiment` is empty for roles of the daemon."""

    __tablename__ = "fences"

    stream: TextKey
    partition: IntKey
    experiment: Key
    role: TextKey
    epoch: Int
    owner: Id
    fenced_ns: Int
    fenced_partition: Int
    fenced_offset: LogOffset


class Once(Row, table=True):
    """Ids of events whose repetition would change a row: the first occurrence in a partition counts."""

    __tablename__ = "once"
    __table_args__ = CLUSTERED

    stream: TextKey
    partition: IntKey
    event: Key
    applied_partition: Int
    applied_offset: LogOffset


class DeadLetters(Row, table=True):
    """A pointer to a record unusable for a consumer; the record stays in the log."""

    __tablename__ = "dead_letters"
    __table_args__ = LOCAL

    consumer: TextKey
    stream: TextKey
    partition: IntKey
    offset: IntKey
    code: Text
    reason: Text
    reported_partition: Int
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
    value: Text
