"""Decisions about dead letters and failed tasks, held against the records that are there."""

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
RecordReader = Callable[[Partition, int], Awaitable[Record | None]]
"""A reader of one record again, which answers None if it is not there."""


async def judge_verdicts(facts: Facts, letters: Letters, identities: Identities, read: RecordReader) -> None:
    """Notes verdicts about nothing, and those whose other event is not there."""
    for letter, verdict in letters.verdicts.items():
        done = "retried" if verdict.retried else "dropped"
        # A negative offset is a letter whose record an import left out: nothing is known of it.
        if letter.offset >= 0 and letter not in letters.letters:
            record = await read(Partition(letter.stream, letter.partition), letter.offset)
            if record is None or not _failed(record):
                what = f"{letter} was {done}, and is neither a record that was set aside nor a task that failed"
                facts.note(RULE, None, what)
        if verdict.event is not None and not await _has_event(verdict.event, identities, read):
            facts.note(RULE, None, f"{letter} was retried by event {verdict.event}, which is not in the log")


def dead_letters(letters: Letters, dead: Mapping[str, str]) -> tuple[LeftOutRecord, ...]:
    """The foreign records, with what was decided about each. `dead` has the reasons by their places."""
    pointers = {str(place) for place in letters.letters}
    states = {str(place): "retried" if each.retried else "dropped" for place, each in letters.verdicts.items()}
    return tuple(
        LeftOutRecord(place, reason, place in pointers, states.get(place, "open")) for place, reason in dead.items()
    )


async def _has_event(id: UUID, identities: Identities, read: RecordReader) -> bool:
    # The index compares 64 bits of an id: only the record itself tells.
    for partition, offset in identities.places(id):
        record = await read(partition, offset)
        head = head_of(record) if record is not None else None
        if head is not None and head.id == id:
            return True
    return False


def _failed(record: Record) -> bool:
    """True for the group.closed of a task that failed."""
    try:
        event = decode_ours(record).event
    except CodecError:
        return False
    return isinstance(event, GroupClosed) and event.failed > 0
