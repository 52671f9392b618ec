"""The projector's progress: positions, fences, events that count once, and records that it could not use."""

from __future__ import annotations

from sqlalchemy import LargeBinary
from sqlmodel import Field

from rftd.storage.database.tables.base import CLUSTERED, LOCAL, Id, Int, IntKey, Key, LogOffset, Row, Text, TextKey


class Positions(Row, table=True):
    """The next offset to apply in one partition, and the chain before it."""

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
    """Ids of events whose repetition would change a row: of one that is in a partition twice the first counts."""

    __tablename__ = "once"
    __table_args__ = CLUSTERED

    stream: TextKey
    partition: IntKey
    event: Key
    applied_partition: Int
    applied_offset: LogOffset


class DeadLetters(Row, table=True):
    """A record that a consumer could not use; the record itself stays in the log."""

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
    """The offset of the record.dead_lettered; the record's own if the projector itself met it."""


class Meta(Row, table=True):
    """`projections`: the version of each when the tables were filled, as JSON; `filled_s`: how long that took."""

    __tablename__ = "meta"
    __table_args__ = LOCAL

    name: TextKey
    value: Text
