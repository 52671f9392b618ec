"""The decoded records of a whole log, or of some streams and one experiment."""

from __future__ import annotations

from uuid import UUID

from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.log import EventLog


async def read_decoded(log: EventLog, *streams: str, experiment: UUID | None = None) -> list[Decoded]:
    """Returns the records of `streams` (none: of all), partition after partition; with `experiment`, of it alone."""
    records: list[Decoded] = []
    for partition, head in (await log.heads()).items():
        offset = 0
        while offset < head.next_offset and (not streams or partition.stream in streams):
            page = await log.read(partition, offset)
            offset = page[-1].offset + 1
            records += [decode(record) for record in page]
    return [record for record in records if experiment is None or record.head.experiment == experiment]
