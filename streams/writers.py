"""The names under which the processes of an experiment write: `source` of a record's envelope."""

from __future__ import annotations

from uuid import UUID


def source_of(role: str, id: UUID) -> str:
    """The source of what a process writes: its role (`daemon`, `explorer`, `trainer`) and its id."""
    return f"{role}/{id}"
