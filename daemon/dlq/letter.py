"""One dead letter: a record that no reader could use, or a task of which too few rollouts succeeded."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.letters import Letter, Place


class State(StrEnum):
    """What became of it."""

    OPEN = "open"
    RETRIED = "retried"
    DROPPED = "dropped"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list."""

    id: str
    """The place of the record, or of the task's group.closed: `stream/partition@offset`."""
    kind: str
    """`record` or `task`."""
    state: State
    experiment: str | None
    """Its id; of a record that no reader understands it is not known."""
    task: str | None
    """NAME/task/STAGE.SEQUENCE."""
    group: str | None
    attempts: int
    """How often the task was given out."""
    code: str
    reason: str
    found_ns: int
    """When the record was met, or the group closed."""
    by: str
    """Who retried or dropped it."""
    verdict: str
    """Why it was dropped."""
    decided_ns: int | None


class DeadLetterList(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, newest first."""

    items: list[DeadLetter]
    open: int
    """How many are open in all."""
    next: int | None


class TryView(msgspec.Struct, frozen=True, kw_only=True):
    """One time that the task was given out."""

    attempt: int
    slot: int
    worker: str
    leased_ns: int
    ended: str


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter with what lies behind it."""

    letter: DeadLetter
    tries: list[TryView]
    """Of a task."""
    record: dict[str, Any] | None
    """Of a record: what can be said of it."""


class DeadLetterReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict is in the log."""

    id: str
    state: State
    already: bool
    """True if it was so before: nothing was written."""
    position: str | None
    """Give it as `?after=` to a read that must see what comes of it."""


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """A letter with what it was made from."""

    letter: DeadLetter
    place: Place
    pointer: Letter | None = None
    task: FailedTask | None = None
