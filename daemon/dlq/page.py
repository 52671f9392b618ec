"""One letter with the record or the attempts behind it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.daemon.api.event_json import plain, view_unread
from rftd.daemon.dlq.letter import Dead, DeadLetterPage, TryView
from rftd.ops.errors import CodecError
from rftd.streams.deadletters import decode_ours
from rftd.streams.envelope import Record
from rftd.streams.folds.letters import Place
from rftd.streams.log import EventLog
from rftd.streams.topics import Partition

SHOWN_SIZE_BYTES: Final = 256
"""Of the bytes of a record that nobody can read."""


async def page_of(log: EventLog, dead: Dead) -> DeadLetterPage:
    """What the log holds of it."""
    tries = [TryView(**msgspec.structs.asdict(each)) for each in dead.task.tries] if dead.task else []
    record = None if dead.task else _record(await record_at(log, dead.place))
    return DeadLetterPage(letter=dead.letter, tries=tries, record=record)


async def record_at(log: EventLog, place: Place) -> Record | None:
    """The record at a place; None if the log has none there any more."""
    records = await log.read(Partition(place.stream, place.partition), place.offset, max_records=1)
    return records[0] if records and records[0].offset == place.offset else None


def _record(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {"missing": True}
    bytes_of = {
        "head_size_bytes": len(record.head),
        "value_size_bytes": len(record.value),
        "head_hex": record.head[:SHOWN_SIZE_BYTES].hex(),
        "value_hex": record.value[:SHOWN_SIZE_BYTES].hex(),
    }
    try:
        decoded = decode_ours(record)
    except CodecError as error:
        try:
            claimed = plain(view_unread(record, error))
        except CodecError:
            claimed = {"reason": error.what}
        return {"readable": False, **claimed, **bytes_of}
    return {"readable": True, "type": decoded.head.type, "payload": plain(decoded.event), **bytes_of}
