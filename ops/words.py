"""`Words`: what a role does or waits for, as people read it: whoever decides says so, and a client shows it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """The severity of a wait, the worst first."""

    STUCK = 0
    """It goes on only if something is mended or somebody acts."""
    WAITS = 1
    """It goes on by itself once somebody else has done his part."""
    WORKS = 2
    DONE = 3


class Words(NamedTuple):
    """One role's work or wait, in words."""

    state: str
    """The wait's name; stable."""
    waiting_for: str = ""
    """The missing thing; of a role that works, what it does."""
    on_whom: str = ""
    """The party whose move comes next: a role, `you`, `the log`, ..."""
    unblock: str = ""
    """The event or command that would end the wait."""
    level: Level = Level.WAITS
