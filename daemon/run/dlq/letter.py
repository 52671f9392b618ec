"""One dead letter: a record that no reader could use, or a task of which too few rollouts succeeded.

The command line reads these structs from the daemon, so that nothing of the log is imported here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from rftd.streams.folds.failed_tasks import FailedTask
    from rftd.streams.folds.letters import Letter, RecordPlace

FORMS: Final = "an ID of rftd dlq ls, NAME/task/STAGE.SEQUENCE, or 8 or more hex digits of a group's id"
_SHORTEST: Final = 8


class State(StrEnum):
    """The state of a dead letter."""

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
    """The experiment's id; None for a record that no reader understands."""
    task: str | None
    """NAME/task/STAGE.SEQUENCE."""
    group: str | None
    attempts: int
    """The number of times that the task was given out."""
    code: str
    reason: str
    found_ns: int
    """The time at which the record was met, or the group closed."""
    by: str
    """The person who retried or dropped it."""
    verdict: str
    """The reason for which it was dropped."""
    decided_ns: int | None


class DeadLetterList(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, newest first."""

    items: list[DeadLetter]
    open: int
    """The number of open ones in all."""
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
    """The attempts at a task; empty for a record."""
    record: dict[str, Any] | None
    """The record as far as it can be read; None for a task."""


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
    place: RecordPlace
    pointer: Letter | None = None
    task: FailedTask | None = None


def listed(dead: list[Dead], *, everything: bool, experiment: UUID | None, limit: int, offset: int) -> DeadLetterList:
    """A page of them: those that are open, or all; of one experiment its tasks."""
    items = [
        each.letter
        for each in dead
        if (everything or each.letter.state is State.OPEN)
        and (experiment is None or each.letter.experiment == str(experiment))
    ]
    return DeadLetterList(
        items=items[offset : offset + limit],
        open=sum(each.letter.state is State.OPEN for each in dead),
        next=offset + limit if len(items) > offset + limit else None,
    )


def meant(dead: list[Dead], wanted: str) -> Dead:
    """The letter that `wanted` names; of a task that failed again after a retry the newest. Raises NotFoundError,
    UsageError.
    """
    # Newest first, so that of a task which failed again after its retry the open letter is meant, not the one decided
    # on.
    for each in dead:
        if wanted in (each.letter.id, each.letter.task):
            return each
    prefix = wanted.replace("-", "").lower()
    found = [each for each in dead if each.task is not None and each.task.group.hex.startswith(prefix)]
    if len(prefix) < _SHORTEST or not found:
        raise NotFoundError(f"no dead letter {wanted[:80]!r}", fix=f"give {FORMS}; see rftd dlq ls --all")
    if len(found) > 1:
        raise UsageError(f"{wanted!r} names {len(found)} dead letters", fix="give more digits")
    return found[0]
