"""One dead letter: a record unusable by its reader, or a task with too few successful rollouts.

The command line reads these structs from the daemon, so nothing of the log is imported here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError, UsageError
from rftd.storage.queries.cursor import Key, cursor_of, key_of

if TYPE_CHECKING:
    from rftd.streams.folds.failed_tasks import FailedTask
    from rftd.streams.folds.letters import Letter, RecordPlace

FORMS: Final = "an ID of rftd dlq ls, NAME/task/STAGE.SEQUENCE, or 8 or more hex digits of a group's id"
"""Accepted forms of a dead letter's name, in words for errors and for the API's document."""
_SHORTEST: Final = 8
"""Minimum number of hex digits in an abbreviated group id."""
_LIST: Final = "dead letters"
"""Name of the list in its cursors: a cursor of another list is refused."""
_ORDER: Final = "newest"
"""Name of the list's only order in its cursors."""


class State(StrEnum):
    """The state of a dead letter: open, retried or dropped."""

    OPEN = "open"
    """State of a letter without a verdict."""
    RETRIED = "retried"
    """State of a letter whose task was leased once more."""
    DROPPED = "dropped"
    """State of a letter set aside for good, with a reason."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One line in the list of dead letters: a record or a task, with its state and verdict."""

    id: str
    """Position of the record, or of the task's group.closed: `stream/partition@offset`."""
    kind: str
    """`record` or `task`."""
    state: State
    """State of the letter: open, retried or dropped."""
    experiment: str | None
    """The experiment's id; None for an unreadable record."""
    task: str | None
    """NAME/task/STAGE.SEQUENCE."""
    group: str | None
    """Id of the task's group; None for a record."""
    attempts: int
    """Number of leases of the task."""
    code: str
    """Error code of the unusable record, or of the task's last failed rollout."""
    reason: str
    """Text of the error named by `code`."""
    found_ns: int
    """Time of reading the record, or of closing the group."""
    by: str
    """Who retried or dropped the letter."""
    verdict: str
    """Reason for dropping the letter."""
    decided_ns: int | None
    """Time of the verdict; None for an open letter."""


class DeadLetterList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of dead letters, newest first."""

    items: list[DeadLetter]
    """The dead letters of this page."""
    open: int
    """Number of open letters, over all pages."""
    next: str | None
    """`cursor` of the next page; null at the end."""


class TryView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at the task: a lease with its worker and end."""

    attempt: int
    """Number of the attempt among those at the task."""
    slot: int
    """Slot of the explorer holding the lease."""
    worker: str
    """Id of the worker in the slot."""
    leased_ns: int
    """Time of the lease, in nanoseconds since 1970."""
    ended: str
    """Reason for the lease's end without completion; empty if the lease did not expire."""


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter with its attempts or its record."""

    letter: DeadLetter
    """The dead letter, as in the list."""
    tries: list[TryView]
    """The attempts at a task; empty for a record."""
    record: dict[str, Any] | None
    """The record, as far as readable; None for a task."""


class DeadLetterReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Receipt of a verdict written to the log, or written earlier."""

    id: str
    """Id of the dead letter."""
    state: State
    """State of the letter after the command."""
    already: bool
    """True if the letter already had this verdict: nothing was written."""
    position: str | None
    """Position for `?after=`, for reads that must see the verdict's effect."""


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as shown to users, with its origin: the pointer to an unusable record, or the failed task."""

    letter: DeadLetter
    """The dead letter as shown in lists."""
    place: RecordPlace
    """Log position of the record, or of the task's group.closed."""
    pointer: Letter | None = None
    """Report of the unusable record; None for a task."""
    task: FailedTask | None = None
    """The task with too few successful rollouts; None for a record."""


def listed(
    dead: list[Dead], *, everything: bool, experiment: UUID | None, limit: int, cursor: str | None
) -> DeadLetterList:
    """Returns a page of dead letters: open ones or all, optionally only tasks of one experiment. Raises CursorError."""
    after = None if cursor is None else key_of(cursor, _LIST, _ORDER, (int, str, int, int))
    letters = [
        letter
        for letter in dead
        if (everything or letter.letter.state is State.OPEN)
        and (experiment is None or letter.letter.experiment == str(experiment))
        and (after is None or _key(letter) < after)
    ]
    page = letters[:limit]
    return DeadLetterList(
        items=[letter.letter for letter in page],
        open=sum(letter.letter.state is State.OPEN for letter in dead),
        next=cursor_of(_LIST, _ORDER, _key(page[-1])) if len(letters) > limit else None,
    )


def _key(dead: Dead) -> Key:
    """Returns the sort key of a letter in the list: its time in nanoseconds, stream, partition and offset."""
    return (dead.letter.found_ns, *dead.place)


def meant(dead: list[Dead], name_or_id: str) -> Dead:
    """Returns the dead letter with this id, task name or group id (8 or more hex digits); of several letters about one
    task, the newest. Raises NotFoundError, or UsageError if the digits fit several groups.
    """
    # Newest first: of a task failing again after its retry, the open letter is meant, not the decided one.
    for letter in dead:
        if name_or_id in (letter.letter.id, letter.letter.task):
            return letter
    prefix = name_or_id.replace("-", "").lower()
    matches = [letter for letter in dead if letter.task is not None and letter.task.group.hex.startswith(prefix)]
    if len(prefix) < _SHORTEST or not matches:
        raise NotFoundError(f"no dead letter {name_or_id[:80]!r}", fix=f"give {FORMS}; see rftd dlq ls --all")
    if len(matches) > 1:
        raise UsageError(f"{name_or_id!r} names {len(matches)} dead letters", fix="give more digits")
    return matches[0]
