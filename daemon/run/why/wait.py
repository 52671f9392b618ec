"""`Wait`: what one role waits for; `Why`: the complete answer of `rftd why`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rftd.ops.words import Level

_OVER: Final = ("failed", "rejected")
"""States of an experiment that ended badly: without a wait, and with the reason as text. Plain words, because the
command line imports this module without any fold.
"""


class Wait(msgspec.Struct, frozen=True):
    """One role's work or wait: what for, on whom, and what ends it."""

    role: str
    """Name of the waiting part: a role, `experiment`, `task`, `signal`, `daemon` or `log`."""
    state: str
    """The wait's stable name."""
    waiting_for: str
    """The missing thing, in words; for a working role, its activity."""
    on_whom: str
    """The party to act next: a role, `you`, `the log`, ...; empty if nobody has to act."""
    unblock: str
    """The event or command ending the wait."""
    level: Level
    """Seriousness of the wait, from a standstill to a finished experiment."""
    slot: int | None = None
    """Slot of an explorer."""
    worker: str | None = None
    """The worker's id, once joined."""
    since_ns: int | None = None
    """Time of the first sighting of this state."""


def what_of(wait: Wait) -> str:
    """Returns the activity or the wait of the wait's role in words, without the role's name."""
    waits = wait.level <= Level.WAITS and wait.role != "log" and wait.state not in _OVER
    return f"waits for {wait.waiting_for}" if waits else wait.waiting_for


def next_of(wait: Wait) -> str:
    """Returns the party to act next and the end of the wait; empty if nobody has to act."""
    return f"{wait.on_whom}: {wait.unblock}" if wait.on_whom and wait.unblock else wait.on_whom or wait.unblock


def sentence_of(wait: Wait) -> str:
    """Returns the wait as one sentence: `planner waits for 3 more groups; explorers: they end`."""
    role = wait.role if wait.slot is None else f"{wait.role} {wait.slot}"
    return "; ".join(filter(None, (f"{role} {what_of(wait)}".rstrip(), next_of(wait))))


def worst_first(waits: Iterable[Wait]) -> list[Wait]:
    """Returns the waits by level; within a level they keep their order, so that related waits stay together."""
    return sorted(waits, key=lambda wait: wait.level)


_OUTSIDE: Final = ("you", "clients")
"""Words of `on_whom` for parties outside of rftd."""


def cause_of(wait: Wait, waits: Iterable[Wait]) -> Wait:
    """Returns the root of this wait if people can end it: for a planner waiting for a dispatcher, the dispatcher's
    wait.

    Roles waiting for each other, or for a working role, are returned as they are: the next one to act is clear.
    """
    waiting = {
        role_wait.role: role_wait for role_wait in waits if role_wait.slot is None and role_wait.level <= Level.WAITS
    }
    visited = {wait.role}
    root = wait
    while root.on_whom in waiting and root.on_whom not in visited:
        visited.add(root.on_whom)
        root = waiting[root.on_whom]
    return root if root.on_whom in _OUTSIDE else wait


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `rftd why` for one experiment: the waits of every role."""

    experiment: str
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    status: str
    """Status of the experiment."""
    live: bool
    """True if a daemon answered; False: read from the log alone."""
    asked_ns: int
    """Time of the answer, in nanoseconds since 1970."""
    waits: list[Wait]
    """The waits, worst first."""
