"""An event as JSON for people: names instead of tuple positions, arrays as their shape, long lists shortened."""

from __future__ import annotations

import math
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.daemon.http.views.event_page import EventView
from rftd.ops.clock import iso
from rftd.ops.errors import CodecError
from rftd.ops.redaction import redact
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import decode_head
from rftd.streams.log.envelope import Decoded, Record

SHOWN_ITEMS: Final = 32
"""Maximum number of list elements shown; `full` shows all."""


def view(decoded: Decoded, *, full: bool = False) -> EventView:
    """Returns the event with its attributes; `full` shows long lists whole."""
    head = decoded.head
    return EventView(
        id=str(head.id),
        type=head.type,
        version=head.version,
        time=iso(head.time_ns),
        position=f"{decoded.partition}@{decoded.offset}",
        source=head.source,
        role=head.role,
        epoch=head.epoch,
        causation=str(head.causation) if head.causation else None,
        correlation=str(head.correlation) if head.correlation else None,
        payload=plain(decoded.event, full=full),
    )


def view_unread(record: Record, error: CodecError) -> EventView:
    """Returns a foreign or newer record: its claimed attributes, and the reason for leaving out its content."""
    head = decode_head(record)
    return EventView(
        id=str(head.id),
        type=head.type,
        version=head.version,
        time=_time(head.time_ns),
        position=f"{record.partition}@{record.offset}",
        source=head.source,
        role=head.role,
        epoch=head.epoch,
        payload={"left_out": True, "code": error.code, "reason": error.what, "size_bytes": len(record.value)},
    )


def _time(time_ns: int) -> str:
    """Returns a time as ISO 8601 in UTC; empty for a number beyond the calendar."""
    try:
        return iso(time_ns)
    except (OverflowError, ValueError, OSError):
        return ""


def plain(value: Any, *, full: bool = False) -> Any:
    """Returns the object as JSON; secrets are masked, though none should be there."""
    return redact(_plain(value, None if full else SHOWN_ITEMS))


def _plain(value: Any, most: int | None) -> Any:
    """Returns a value as JSON shows it: ids and bytes as text, arrays as dtype and shape, lists cut after `most`
    elements.
    """
    if isinstance(value, Array):
        return {"dtype": value.dtype, "shape": list(value.shape)}
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name), most) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): _plain(child, most) for key, child in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        elements = list(value)
        shown = [_plain(child, most) for child in elements[:most]]
        return [*shown, f"... {len(elements) - len(shown)} more"] if len(elements) > len(shown) else shown
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no NaN, and browsers refuse Python's
        return None
    return value
