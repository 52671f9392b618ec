"""Events of an experiment, as answered to clients."""

from __future__ import annotations

from typing import Any

import msgspec


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One event of an experiment: the attributes of its head, and its payload."""

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
    """Some events, and the start of the next page."""

    items: list[EventView]
    next: str
    """`cursor` of the next page; unchanged at the end of the log."""
    more: bool
    """False if the page ends at the end of the log."""
    previous: str | None = None
    """`before` of the page of earlier events; null at the beginning of the log."""
