"""`Words`: what a role does or waits for, as text written by the deciding code and shown by clients."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """Severity of a wait, the worst first, for ordering and colours."""

    STUCK = 0
    """Continues only after a repair or an action by a person."""
    WAITS = 1
    """Continues by itself once another party has done its part."""
    WORKS = 2
    """The role works."""
    DONE = 3
    """Nothing is left to do."""


class Words(NamedTuple):
    """What a role does or waits for: the missing condition, who acts next, and what ends the wait."""

    state: str
    """The wait's name; stable."""
    waiting_for: str = ""
    """The missing condition; for a working role, the current work."""
    on_whom: str = ""
    """The party whose action comes next: a role, `you`, `the log`, ..."""
    unblock: str = ""
    """The event or command that would end the wait."""
    level: Level = Level.WAITS
    """Severity of the wait."""
