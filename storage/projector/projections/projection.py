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

Handler = Callable[[Any, Decoded, Changes], None]
"""A function that adds the row changes of an event to those so far, from the event and its record alone."""


@dataclass(frozen=True)
class Projection:
    """Tables and the handlers that fill them. A changed meaning is a new `version`: all tables are then filled anew."""

    name: str
    version: int
    tables: tuple[type[Row], ...]
    handlers: Mapping[type[Event], Handler]


def id_of(value: UUID | None) -> bytes | None:
    """The id as a column holds it."""
    return value.bytes if value is not None else None


def owner_of(decoded: Decoded) -> bytes:
    """The experiment of a record, as a key column holds it; empty for records of none."""
    experiment = decoded.head.experiment
    return experiment.bytes if experiment is not None else b""


def json_of(value: object) -> str:
    """The value as JSON text; NaN and infinities become null."""
    return _encode(value).decode()
