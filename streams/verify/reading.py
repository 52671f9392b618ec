"""Reads a partition up to an end, and goes on after a record that is damaged or missing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from rftd.ops import limits
from rftd.ops.errors import LogCorruptError
from rftd.streams.envelope import Record
from rftd.streams.log import EventLog
from rftd.streams.topics import Partition

Damaged = Callable[[int, int, str], None]
"""Told of the offsets [first, next) that cannot be read, and why."""


async def records_until(log: EventLog, partition: Partition, end: int, damaged: Damaged) -> AsyncIterator[list[Record]]:
    """The readable records below `end`, many at a time."""
    offset = 0
    bad: tuple[int, int, str] | None = None
    while offset < end:
        try:
            records = await log.read(partition, offset)
        except LogCorruptError as error:
            place = _offset_in(error, partition)
            if place is None:
                raise
            if place > offset:  # what lies before it is whole
                records = await log.read(partition, offset, max_records=min(place - offset, limits.FETCH_RECORDS))
            else:
                first, text = (bad[0], bad[2]) if bad is not None else (offset, error.what)
                offset += 1
                bad = (first, offset, text)
                continue
        if bad is not None:
            damaged(*bad)
            bad = None
        if not records:
            break
        if records[-1].offset >= end:
            records = [record for record in records if record.offset < end]
        offset = records[-1].offset + 1 if records else end
        if records:
            yield records
    if bad is not None:
        damaged(*bad)


def _offset_in(error: LogCorruptError, partition: Partition) -> int | None:
    """Which record is damaged; None if the log cannot be read at all."""
    name, _, offset = (error.where or "").rpartition("@")
    return int(offset) if name == str(partition) and offset.isdigit() else None
