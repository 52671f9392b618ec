"""`lag_records`: how far the tables of a projector are behind a log."""

from __future__ import annotations

from rftd.storage.projector.projector import Projector
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TRUTH


async def lag_records(log: EventLog, projector: Projector) -> int:
    """The records of the log that are not in the tables yet."""
    heads = await log.heads()
    positions = projector.positions
    return sum(heads[partition].next_offset - positions.get(partition, 0) for partition in TRUTH if partition in heads)
