"""Events of an experiment, as answered to clients."""

from __future__ import annotations

from typing import Any

import msgspec


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One event of an experiment: the attributes of its head, and its payload."""

    id: str
    """Id of the event."""
    type: str
    """Type of the event, such as `step.completed`."""
    version: int
    """Version of the event's schema."""
    time: str
    """Time of the event, ISO 8601 in UTC."""
    position: str
    """`stream/partition@offset`."""
    source: str
    """Writer of the event."""
    role: str
    """Role of the writer."""
    epoch: int
    """Epoch of the role."""
    causation: str | None = None
    """Id of the event behind this one."""
    correlation: str | None = None
    """Id common to all events of one cause."""
    payload: dict[str, Any]
    """Fields of the event."""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some events, and the start of the next page."""

    items: list[EventView]
    """Events of the page, in order."""
    next: str
    """`cursor` of the next page; unchanged at the end of the log."""
    more: bool
    """False if the page ends at the end of the log."""
    previous: str | None = None
    """`before` of the page of earlier events; null at the beginning of the log."""
