"""Sources: the names under which an experiment's processes write, in the envelope of each record."""

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
    """Returns the id, as bytes, of the explorer with this source; None for a source of another role."""
    role, _, id = source.partition("/")
    if role != "explorer":
        return None
    try:
        explorer = UUID(id)
    except ValueError:
        return None
    return explorer.bytes if source == source_of(role, explorer) else None


def holder_source(role: str, owner: UUID) -> str:
    """Returns the source of a role's owner: a trainer process owns its role itself, a daemon owns all others."""
    return source_of("trainer" if role == TRAINER else "daemon", owner)
