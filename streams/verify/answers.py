"""Answers of workers: each is of a lease, of the worker that the lease was given to, and one for each rollout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from struct import Struct
from typing import Any, Final
from uuid import UUID

import numpy as np
import xxhash
from numpy.typing import NDArray

from rftd.streams.events import experience, task
from rftd.streams.log import topics
from rftd.streams.log.codec import place
from rftd.streams.log.deadletters import head_of
from rftd.streams.log.envelope import Decoded, Head, Record
from rftd.streams.log.topics import Partition
from rftd.streams.log.writers import source_of
from rftd.streams.verify.evidence import Evidence
from rftd.streams.verify.facts import ANSWERS, Facts, place_number, place_of

RULE: Final = "answers-have-a-lease"
LEASES: Final = (task.TaskLeased, task.EvalLeased)
_ANSWER: Final = Struct("<QQII")
_KEY: Final = Struct("<Q")
_U32: Final = (1 << 32) - 1
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""An odd number, by which the rollouts of one lease become different keys."""
_TOGETHER: Final = 32
"""The blocks of answers (more than a million rows) that are held against every lease at once."""

RecordAt = Callable[[Partition, int], Awaitable[Record | None]]
Answer = experience.ExperienceProduced | experience.RolloutFailed | experience.EvalScored


def answered(facts: Facts, evidence: Evidence, event: Answer, decoded: Decoded) -> None:
    """Keeps who wrote an answer, and of which lease."""
    at = place_number(decoded.partition.number, decoded.offset)
    key = holder_key(evidence, event.lease, decoded.head.source)
    number = event.row_start if isinstance(event, experience.EvalScored) else event.rollout
    facts.answers.add(_ANSWER.pack(key, at, evidence.index, number & _U32))


def lease_given(facts: Facts, evidence: Evidence, event: task.TaskLeased | task.EvalLeased) -> None:
    """Keeps who holds a lease, be it one that a fence made void: its worker could not know."""
    facts.leases.add(_KEY.pack(holder_key(evidence, event.lease, source_of("explorer", event.worker))))
    evidence.leased_to.add(event.worker)


async def judge_answers(facts: Facts, evidences: list[Evidence], record_at: RecordAt) -> None:
    """Notes answers to leases that their writers never held, and leases of workers that never joined."""
    for evidence in evidences:
        for worker in sorted(evidence.leased_to - evidence.workers):
            if not evidence.lost_some(topics.WORKERS):
                facts.note(RULE, evidence.id, f"worker {worker} was given leases and never joined")
    for rows in _some(facts):
        await _note_second_answers(facts, evidences, rows, record_at)
        for row in rows[~_held(facts, rows["key"])]:
            evidence = evidences[int(row["experiment"])]
            if evidence.lost_some(topics.TASKS):
                continue  # the lease may be among the records that a person let it go on without
            partition, offset = _where(row)
            if offset >= facts.leased_below.get(partition, 0):
                continue  # the lease may have been written after the end up to which leases were read
            record = await record_at(partition, offset)
            head = head_of(record) if record is not None else None
            facts.note(RULE, evidence.id, f"{_named(head)} at {partition}@{offset} is of no lease that its writer held")


async def _note_second_answers(
    facts: Facts, evidences: list[Evidence], rows: NDArray[Any], record_at: RecordAt
) -> None:
    """Notes each rollout of a lease that its holder answered again, with other content."""
    # A rollout that is leased again has two answers of one id, each of a lease of its own: that is no finding.
    keys = rows["key"] + rows["number"].astype("<u8") * _SPREAD
    order = np.lexsort((rows["place"], keys))
    for index in np.flatnonzero(keys[order][1:] == keys[order][:-1]):
        first, again = rows[order[index]], rows[order[index + 1]]
        if (first["key"], first["number"]) != (again["key"], again["number"]):
            continue
        earlier = await record_at(*_where(first))
        later = await record_at(*_where(again))
        if earlier is None or later is None or _alike(earlier, later):
            continue
        what = f"{_named(head_of(later))} at {place(later)} answers a rollout of its lease"
        evidence = evidences[int(again["experiment"])]
        facts.note(RULE, evidence.id, f"{what} otherwise than {place(earlier)} did")


def _alike(earlier: Record, later: Record) -> bool:
    """True if both say the same, as far as their payloads are there."""
    return earlier.thin or later.thin or earlier.value == later.value


def _where(row: Any) -> tuple[Partition, int]:
    """The place of an answer."""
    number, offset = place_of(int(row["place"]))
    return Partition(topics.EXPERIENCES, number), offset


def _named(head: Head | None) -> str:
    return f"{head.type} of {head.source!r}" if head is not None else "the record"


def _some(facts: Facts) -> Iterator[NDArray[Any]]:
    """The answers, as many as fit in memory at once."""
    held: list[NDArray[Any]] = []
    for block in facts.answers.blocks():
        held.append(np.frombuffer(block, dtype=ANSWERS))
        if len(held) >= _TOGETHER:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _held(facts: Facts, keys: NDArray[Any]) -> NDArray[Any]:
    """True for each key that is a lease's."""
    different, inverse = np.unique(keys, return_inverse=True)
    held = np.zeros(len(different), dtype=bool)
    for block in facts.leases.blocks():
        leases = np.frombuffer(block, dtype="<u8")
        at = np.minimum(np.searchsorted(different, leases), len(different) - 1)
        held[at[different[at] == leases]] = True
    of_each_key: NDArray[Any] = held[inverse]
    return of_each_key


def holder_key(evidence: Evidence, lease: UUID, source: str) -> int:
    """A lease and a writer as one number, for the worker that holds the lease or for one that answers it."""
    return xxhash.xxh3_64_intdigest(lease.bytes + source.encode(), seed=evidence.index)


HANDLERS: Final[Mapping[type, Any]] = {experience.RolloutFailed: answered}
