"""`LogReading`: partitions read past damage and gaps, and single records read again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol, runtime_checkable

from rftd.ops import limits
from rftd.ops.errors import LogCorruptError, LogLossError
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition

Damaged = Callable[[int, int, str], None]
"""A callback for unreadable offsets [first, next), with the reason."""
_GAP_LOOKED_INTO: Final = 1 << 16
"""Maximum length of a gap that is examined; a longer one cannot consist of repetitions or transactions."""


@runtime_checkable
class LeavesOut(Protocol):
    """A log that skips repeated records, and whose offsets may also be taken by other programs' transactions."""

    async def lost(self, partition: Partition, first: int, end: int) -> int:
        """Returns the number of offsets in [first, end) without a record, explained neither by a repetition nor by a
        transaction.
        """
        ...


class LogReading:
    """Reads of one check, each partition up to an end fixed before."""

    def __init__(self, log: EventLog, ends: dict[Partition, int]) -> None:
        """Prepares reads of `log` up to `ends`, the next offset of each partition."""
        self.log = log
        self._ends = ends

    async def records(self, partition: Partition, damaged: Damaged) -> AsyncIterator[list[Record]]:
        """Yields the readable records below the end, in batches. Raises LogCorruptError if nothing can be read."""
        end = self._ends.get(partition, 0)
        offset = 0
        bad: tuple[int, int, str] | None = None
        while offset < end:
            try:
                records = await self.log.read(partition, offset)
            except LogCorruptError as error:
                damaged_offset = _offset_in(error, partition)
                if damaged_offset is None:
                    raise
                if damaged_offset > offset:  # the records before it are whole
                    sound_count = min(damaged_offset - offset, limits.FETCH_RECORDS)
                    records = await self.log.read(partition, offset, max_records=sound_count)
                else:
                    # Offset by offset: nothing marks the beginning of the next readable record. Neighbours become one
                    # finding, under the error of the first.
                    bad = (offset, offset + 1, error.what) if bad is None else (bad[0], offset + 1, bad[2])
                    offset += 1
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

    async def record(self, partition: Partition, offset: int) -> Record | None:
        """Reads one record again; None if it is missing or damaged."""
        if not 0 <= offset < self._ends.get(partition, 0):
            return None
        try:
            records = await self.log.read(partition, offset, max_records=1)
        except LogCorruptError:
            return None
        # `read` begins at the next record if this one is missing.
        return records[0] if records and records[0].offset == offset else None

    async def holds(self, heads: Heads) -> bool:
        """True if the log has the records before these heads, unchanged."""
        try:
            await self.log.check_heads(heads)
        except (LogLossError, LogCorruptError):
            return False
        return True

    async def gone(self, partition: Partition, first: int, end: int) -> int:
        """Returns the number of missing records in [first, end), not counting offsets that the log itself skips."""
        if isinstance(self.log, LeavesOut) and 0 < end - first <= _GAP_LOOKED_INTO:
            return await self.log.lost(partition, first, end)
        return end - first


def _offset_in(error: LogCorruptError, partition: Partition) -> int | None:
    """Returns the offset of the damaged record; None if the log cannot be read at all."""
    name, _, offset = (error.where or "").rpartition("@")
    return int(offset) if name == str(partition) and offset.isdigit() else None
