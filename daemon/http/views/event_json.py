"""An event as JSON for people: names instead of places in a tuple, arrays as their shape, long lists cut."""

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
"""The items of a list that are shown; `full` shows all."""


def view(decoded: Decoded, *, full: bool = False) -> EventView:
    """The event with its attributes."""
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
    """A record that is not ours, or of a newer release: its attributes as they claim to be, and why it is left out."""
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
    try:
        return iso(time_ns)
    except (OverflowError, ValueError, OSError):
        return ""


def plain(value: Any, *, full: bool = False) -> Any:
    """The value in terms of JSON; secrets are masked, though none should be there."""
    return redact(_plain(value, None if full else SHOWN_ITEMS))


def _plain(value: Any, most: int | None) -> Any:
    if isinstance(value, Array):
        return {"dtype": value.dtype, "shape": list(value.shape)}
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name), most) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): _plain(item, most) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)
        shown = [_plain(item, most) for item in items[:most]]
        return [*shown, f"... {len(items) - len(shown)} more"] if len(items) > len(shown) else shown
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no NaN, and browsers refuse Python's
        return None
    return value
