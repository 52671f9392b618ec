"""The names under which the processes of an experiment write: `source` of a record's envelope."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import UUID

from rftd.streams.events.registry import TRAINER

_REMEMBERED: Final = 4096
"""Number of sources with a remembered explorer: one exists for each process that ever wrote."""


def source_of(role: str, id: UUID) -> str:
    """Returns the source of a process's records: its role (`daemon`, `explorer`, `trainer`) and its id."""
    return f"{role}/{id}"


@lru_cache(maxsize=_REMEMBERED)
def explorer_of(source: str) -> bytes | None:
    """Returns the id of the explorer writing under a source, as bytes; None for the source of another role."""
    role, _, id = source.partition("/")
    if role != "explorer":
        return None
    try:
        explorer = UUID(id)
    except ValueError:
        return None
    return explorer.bytes if source == source_of(role, explorer) else None


def holder_source(role: str, owner: UUID) -> str:
    """Returns the source of a role owner's records: a trainer holds its role itself, a daemon all others."""
    return source_of("trainer" if role == TRAINER else "daemon", owner)
