"""`Words`: a role's work or wait in words for people, written by the deciding code and shown by clients."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """The severity of a wait, the worst first, for ordering and colours."""

    STUCK = 0
    """Continues only after a repair or an action by a person."""
    WAITS = 1
    """Continues by itself once another party has done its part."""
    WORKS = 2
    DONE = 3


class Words(NamedTuple):
    """A role's work or wait in words: what is missing, who acts next, and what ends it."""

    state: str
    """The wait's name; stable."""
    waiting_for: str = ""
    """The missing condition; for a working role, the current work."""
    on_whom: str = ""
    """The party whose action comes next: a role, `you`, `the log`, ..."""
    unblock: str = ""
    """The event or command that would end the wait."""
    level: Level = Level.WAITS
