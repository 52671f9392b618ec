"""One wait, and the answer as a whole."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Level(IntEnum):
    """The severity of a wait, the worst first."""

    STUCK = 0
    """It goes on only if something is mended or somebody acts."""
    WAITS = 1
    """It goes on by itself once somebody else has done his part."""
    WORKS = 2
    DONE = 3


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One role's work or wait."""

    role: str
    slot: int | None = None
    """The slot of an explorer."""
    worker: str | None = None
    """The worker's id, if it has joined."""
    level: Level
    state: str
    """The wait's name; stable."""
    waiting_for: str
    """The missing thing, in words; empty for a role that works."""
    on_whom: str = ""
    """The party whose move comes next: a role, `you`, `the log`, ..."""
    unblock: str = ""
    """The event or command that would end the wait."""
    since_ns: int | None = None
    """The time at which this state was first seen."""


def told(
    role: str,
    level: Level,
    state: str,
    waiting_for: str = "",
    on_whom: str = "",
    unblock: str = "",
    *,
    since_ns: int | None = None,
) -> Wait:
    """A wait of a role that has no slots, in the order in which it is read."""
    return Wait(
        role=role,
        level=level,
        state=state,
        waiting_for=waiting_for,
        on_whom=on_whom,
        unblock=unblock,
        since_ns=since_ns,
    )


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one experiment."""

    experiment: str
    name: str
    status: str
    live: bool
    """False: read from the log, without a daemon."""
    asked_ns: int
    waits: list[Wait]
    """Worst first."""
