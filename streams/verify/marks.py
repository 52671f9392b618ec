"""Marks of steps (the digest of the spine as read by their trainer), compared with the records in the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from rftd.streams.events.step import SpineMark, StepCompleted
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.spine_digest import SpineDigest
from rftd.streams.verify.evidence import Evidence
from rftd.streams.verify.facts import Facts

RULE: Final = "spine-is-as-read"
"""The rule checked here, as named in findings."""
Work = Callable[[], Awaitable[None]]
"""Work of the check, to be awaited."""


def judged(log: EventLog, facts: Facts, evidence: Evidence, event: StepCompleted, offset: int) -> Work | None:
    """Compares a step's spine digest with the records read, and reports the first difference.

    Returns work to be done before the next record if records have to be read again; None otherwise.
    """
    mark = event.spine
    trail = evidence.trail
    assert mark is not None
    if trail.broken:  # each digest continues the previous one: all later ones differ, and prove nothing new
        return None
    where = f"step {event.step} of generation {event.generation} at {evidence.spine}@{offset}"
    previous_mark = trail.mark
    if not 0 <= mark.start <= mark.end <= offset or (previous_mark is not None and mark.end < previous_mark.end):
        trail.broken = True
        facts.note(RULE, evidence.id, f"{where} has read [{mark.start}, {mark.end}), which it cannot have")
        return None
    if previous_mark is not None and mark.start != previous_mark.start:
        trail.broken = True
        facts.note(
            RULE, evidence.id, f"{where} has read from {mark.start} on, the one before from {previous_mark.start} on"
        )
        return None
    digest = trail.at(mark)
    if digest is None:
        return partial(_read_again, log, facts, evidence, mark, where, offset)
    _compare(facts, evidence, mark, digest, where)
    return None


async def _read_again(
    log: EventLog, facts: Facts, evidence: Evidence, mark: SpineMark, where: str, offset: int
) -> None:
    """Judges a mark without a remembered digest, by reading its records again: the first mark of a history begun
    without marks, or a mark ending further back than the digests.
    """
    digest = SpineDigest(evidence.id, SpineMark(mark.start, mark.start, bytes(16)))
    later_records: list[Record] = []
    at = mark.start
    while at <= offset and (records := await log.read(evidence.spine, at)):
        for record in records:
            if record.offset < mark.end:
                digest.take(record)
            elif record.offset <= offset and digest.is_new(record):
                later_records.append(record)
        at = records[-1].offset + 1
    evidence.trail.goes_on(mark, digest.mark.digest, later_records)
    _compare(facts, evidence, mark, digest.mark.digest, where)


def _compare(facts: Facts, evidence: Evidence, mark: SpineMark, digest: bytes, where: str) -> None:
    """Notes a mark whose digest differs from the digest of the spine's records in the log; remembers the mark as the
    newest compared.
    """
    trail = evidence.trail
    if digest != mark.digest:
        start = trail.mark.end if trail.mark is not None else mark.start
        trail.broken = True
        finding = f"{evidence.spine}@{start} to {mark.end - 1} holds other records of it than {where} has read"
        facts.note(RULE, evidence.id, finding)
    trail.mark = mark
