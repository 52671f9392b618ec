"""`Projection`: a name, a version, tables, and pure functions from events to row changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.storage.database.tables.base import Row
from rftd.storage.projector.upserts import Changes
from rftd.streams.events.registry import Event
from rftd.streams.log.envelope import Decoded

_encode: Final = msgspec.json.Encoder().encode
"""Encoder of JSON columns."""

Handler = Callable[[Any, Decoded, Changes], None]
"""A function that appends the row changes of an event, computed from the event and its record alone."""


@dataclass(frozen=True)
class Projection:
    """Tables and the handlers that fill them. A changed meaning needs a new `version`: all tables are then refilled."""

    name: str
    """Name of the projection."""
    version: int
    """Version of the projection's meaning."""
    tables: tuple[type[Row], ...]
    """Tables written by this projection alone."""
    handlers: Mapping[type[Event], Handler]
    """Function for each event type."""


def id_of(uuid: UUID | None) -> bytes | None:
    """Returns an id as stored in a column."""
    return uuid.bytes if uuid is not None else None


def owner_of(decoded: Decoded) -> bytes:
    """Returns the experiment of a record as a key column; empty for records without one."""
    experiment = decoded.head.experiment
    return experiment.bytes if experiment is not None else b""


def json_of(content: object) -> str:
    """Returns the object as JSON text for a column; NaN and infinities become null."""
    return _encode(content).decode()
