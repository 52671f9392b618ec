"""The names under which the processes of an experiment write: `source` of a record's envelope."""

from __future__ import annotations

from uuid import UUID

from rftd.streams.events.registry import TRAINER


def source_of(role: str, id: UUID) -> str:
    """The source of what a process writes: its role (`daemon`, `explorer`, `trainer`) and its id."""
    return f"{role}/{id}"


def holder_source(role: str, owner: UUID) -> str:
    """The source of what the owner of a leased role writes: a trainer holds its role itself, a daemon all others."""
    return source_of("trainer" if role == TRAINER else "daemon", owner)
