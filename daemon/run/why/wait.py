"""One wait, and the answer as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rftd.ops.words import Level

_OVER: Final = ("failed", "rejected")
"""States of an experiment that ended badly: it waits for nothing, and the text is the reason. As words, for the command
line imports this, and no fold."""


class Wait(msgspec.Struct, frozen=True):
    """One role's work or wait."""

    role: str
    state: str
    """The wait's name; stable."""
    waiting_for: str
    """The missing thing, in words; of a role that works, what it does."""
    on_whom: str
    """The party whose move comes next: a role, `you`, `the log`, ...; empty where nobody has to do anything."""
    unblock: str
    """The event or command that would end the wait."""
    level: Level
    slot: int | None = None
    """The slot of an explorer."""
    worker: str | None = None
    """The worker's id, if it has joined."""
    since_ns: int | None = None
    """The time at which this state was first seen."""


def what_of(wait: Wait) -> str:
    """The doing or the wait of the role, without the role."""
    waits = wait.level <= Level.WAITS and wait.role != "log" and wait.state not in _OVER
    return f"waits for {wait.waiting_for}" if waits else wait.waiting_for


def next_of(wait: Wait) -> str:
    """The side whose move comes next, and the end of the wait; empty where nobody has to do anything."""
    return f"{wait.on_whom}: {wait.unblock}" if wait.on_whom and wait.unblock else wait.on_whom or wait.unblock


def sentence_of(wait: Wait) -> str:
    """The wait as one sentence: `planner waits for 3 more groups; explorers: they end`."""
    role = wait.role if wait.slot is None else f"{wait.role} {wait.slot}"
    return "; ".join(filter(None, (f"{role} {what_of(wait)}".rstrip(), next_of(wait))))


def worst_first(waits: Iterable[Wait]) -> list[Wait]:
    """The waits by level; within a level they keep their order, so that what belongs together stays together."""
    return sorted(waits, key=lambda wait: wait.level)


_OUTSIDE: Final = ("you", "clients")


def cause_of(wait: Wait, waits: Iterable[Wait]) -> Wait:
    """The wait that this one comes from, if people end that: of a planner that waits for a dispatcher, the latter's.

    Roles that wait for each other, or for a role at work, are told as they are: the next one to move is no mystery.
    """
    waiting = {each.role: each for each in waits if each.slot is None and each.level <= Level.WAITS}
    seen = {wait.role}
    here = wait
    while here.on_whom in waiting and here.on_whom not in seen:
        seen.add(here.on_whom)
        here = waiting[here.on_whom]
    return here if here.on_whom in _OUTSIDE else wait


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
