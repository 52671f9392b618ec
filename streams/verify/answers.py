"""Check of workers' answers: each belongs to a lease of its writer, and no rollout of a lease has two different
answers.
"""

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
"""The rule checked here, as named in findings."""
LEASES: Final = (task.TaskLeased, task.EvalLeased, task.GroupLeased)
"""Events that give work to an explorer."""
_ANSWER: Final = Struct("<QQII")
"""Encodes an `ANSWERS` row of the facts."""
_KEY: Final = Struct("<Q")
"""Encodes a lease with its holder in `Facts.leases`."""
_U32: Final = (1 << 32) - 1
"""Keeps the lower 32 bits of a number."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""An odd number, giving the rollouts of one lease different keys."""
_TOGETHER: Final = 32
"""Number of blocks of answers (more than a million rows) compared with every lease at once."""

RecordAt = Callable[[Partition, int], Awaitable[Record | None]]
"""An async function reading one record again; None for a missing or damaged one."""
Answer = experience.ExperienceProduced | experience.RolloutFailed | experience.EvalScored | experience.GroupProcessed
"""An event that answers a lease."""


def answered(facts: Facts, evidence: Evidence, event: Answer, decoded: Decoded) -> None:
    """Stores writer, lease and rollout (or first row) of an answer, for the judgement after all leases were read."""
    at = place_number(decoded.partition.number, decoded.offset)
    key = holder_key(evidence, event.lease, decoded.head.source)
    match event:
        case experience.EvalScored():
            number = event.row_start
        case experience.GroupProcessed():
            number = 0  # one answer to each lease
        case _:
            number = event.rollout
    facts.answers.add(_ANSWER.pack(key, at, evidence.index, number & _U32))


def lease_given(facts: Facts, evidence: Evidence, event: task.TaskLeased | task.EvalLeased | task.GroupLeased) -> None:
    """Stores the holder of a lease, even of a void one, because its worker could not know."""
    facts.leases.add(_KEY.pack(holder_key(evidence, event.lease, source_of("explorer", event.worker))))
    evidence.leased_to.add(event.worker)


async def judge_answers(facts: Facts, evidences: list[Evidence], record_at: RecordAt) -> None:
    """Reports different answers to one rollout of a lease, answers without a lease held by their writers, and leases of
    workers that never joined.
    """
    for evidence in evidences:
        for worker in sorted(evidence.leased_to - evidence.workers):
            if not evidence.lost_some(topics.WORKERS):
                facts.note(RULE, evidence.id, f"worker {worker} got leases and never joined")
    for rows in _answer_batches(facts):
        await _note_second_answers(facts, evidences, rows, record_at)
        for row in rows[~_have_lease(facts, rows["key"])]:
            evidence = evidences[int(row["experiment"])]
            if evidence.lost_some(topics.TASKS):
                continue  # the lease may be among lost records accepted by a person
            partition, offset = _where(row)
            if offset >= facts.leased_below.get(partition, 0):
                continue  # the lease may have been written after the end of the reading of leases
            record = await record_at(partition, offset)
            head = head_of(record) if record is not None else None
            facts.note(RULE, evidence.id, f"{_named(head)} at {partition}@{offset} is of no lease held by its writer")


async def _note_second_answers(
    facts: Facts, evidences: list[Evidence], rows: NDArray[Any], record_at: RecordAt
) -> None:
    """Notes each rollout of a lease answered twice by one writer, with different content; compares only the answers in
    `rows`.
    """
    # A rollout leased again has two answers with one id, each for a separate lease: no finding.
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
        finding = f"{_named(head_of(later))} at {place(later)} answers a rollout of its lease"
        evidence = evidences[int(again["experiment"])]
        facts.note(RULE, evidence.id, f"{finding} differently from {place(earlier)}")


def _alike(earlier: Record, later: Record) -> bool:
    """True if both records have equal payloads, as far as the payloads are present."""
    return earlier.thin or later.thin or earlier.value == later.value


def _where(row: Any) -> tuple[Partition, int]:
    """Returns the position of an answer."""
    number, offset = place_of(int(row["place"]))
    return Partition(topics.EXPERIENCES, number), offset


def _named(head: Head | None) -> str:
    """Names a record by type and source, for a finding."""
    return f"{head.type} of {head.source!r}" if head is not None else "the record"


def _answer_batches(facts: Facts) -> Iterator[NDArray[Any]]:
    """Yields the answers in batches of `_TOGETHER` blocks, the last one shorter."""
    batch: list[NDArray[Any]] = []
    for block in facts.answers.blocks():
        batch.append(np.frombuffer(block, dtype=ANSWERS))
        if len(batch) >= _TOGETHER:
            yield np.concatenate(batch)
            batch = []
    if batch:
        yield np.concatenate(batch)


def _have_lease(facts: Facts, keys: NDArray[Any]) -> NDArray[Any]:
    """Returns a mask of the keys that belong to a lease."""
    different, inverse = np.unique(keys, return_inverse=True)
    leased = np.zeros(len(different), dtype=bool)
    for block in facts.leases.blocks():
        leases = np.frombuffer(block, dtype="<u8")
        at = np.minimum(np.searchsorted(different, leases), len(different) - 1)
        leased[at[different[at] == leases]] = True
    of_each_key: NDArray[Any] = leased[inverse]
    return of_each_key


def holder_key(evidence: Evidence, lease: UUID, source: str) -> int:
    """Hashes a lease and a writer into one number, by which an answer is compared with the lease's holder."""
    return xxhash.xxh3_64_intdigest(lease.bytes + source.encode(), seed=evidence.index)


HANDLERS: Final[Mapping[type, Any]] = {experience.RolloutFailed: answered, experience.GroupProcessed: answered}
"""The function called with each answer without further checks, by type of event; `rollouts` has the other answers."""
