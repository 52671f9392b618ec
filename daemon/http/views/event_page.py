"""Events of an experiment as clients get them."""

from __future__ import annotations

from typing import Any

import msgspec


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One event of an experiment."""

    id: str
    type: str
    version: int
    time: str
    """ISO-8601 UTC."""
    position: str
    """`stream/partition@offset`."""
    source: str
    role: str
    epoch: int
    causation: str | None = None
    correlation: str | None = None
    payload: dict[str, Any]


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some events, and where the next page begins."""

    items: list[EventView]
    next: str
    """`after` of the next page; stays the same at the end of the log."""
    more: bool
    """False if the page ends at the end of the log."""
