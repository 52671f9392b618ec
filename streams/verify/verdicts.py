"""Check of verdicts on dead letters and failed tasks: each must have a subject, and name an existing event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import UUID

from rftd.ops.errors import CodecError
from rftd.streams.events.task import GroupClosed
from rftd.streams.folds.letters import Letters
from rftd.streams.log.deadletters import decode_ours, head_of
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition
from rftd.streams.verify.facts import Facts
from rftd.streams.verify.identities import Identities
from rftd.streams.verify.report import LeftOutRecord

RULE: Final = "verdicts-name-a-letter"
"""The rule checked here, as named in findings."""
RecordReader = Callable[[Partition, int], Awaitable[Record | None]]
"""An async function reading a single record; None if missing."""


async def judge_verdicts(facts: Facts, letters: Letters, identities: Identities, read: RecordReader) -> None:
    """Reports verdicts on nothing, and verdicts naming a missing event."""
    for letter, verdict in letters.verdicts.items():
        done = "retried" if verdict.retried else "dropped"
        # A negative offset is a letter whose record was left out by an import: nothing is known of it.
        if letter.offset >= 0 and letter not in letters.letters:
            record = await read(Partition(letter.stream, letter.partition), letter.offset)
            if record is None or not _failed(record):
                finding = f"{letter} was {done}, and is neither a dead letter nor a failed task"
                facts.note(RULE, None, finding)
        if verdict.event is not None and not await _has_event(verdict.event, identities, read):
            facts.note(RULE, None, f"{letter} was retried by event {verdict.event}, which is not in the log")


def dead_letters(letters: Letters, dead: Mapping[str, str]) -> tuple[LeftOutRecord, ...]:
    """Returns the foreign records, with the decision about each. `dead` has the reasons by their positions."""
    pointers = {str(position) for position in letters.letters}
    states = {
        str(position): "retried" if verdict.retried else "dropped" for position, verdict in letters.verdicts.items()
    }
    return tuple(
        LeftOutRecord(position, reason, position in pointers, states.get(position, "open"))
        for position, reason in dead.items()
    )


async def _has_event(id: UUID, identities: Identities, read: RecordReader) -> bool:
    # The index compares 64 bits of an id: only the record itself decides.
    """True if the log has an event with this id."""
    for partition, offset in identities.places(id):
        record = await read(partition, offset)
        head = head_of(record) if record is not None else None
        if head is not None and head.id == id:
            return True
    return False


def _failed(record: Record) -> bool:
    """True for the group.closed of a failed task."""
    try:
        event = decode_ours(record).event
    except CodecError:
        return False
    return isinstance(event, GroupClosed) and event.failed > 0
