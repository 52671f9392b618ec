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
from rftd.streams.verify.scratch import Spool

RULE: Final = "answers-have-a-lease"
"""Name of the rule checked in this module, as in findings."""
LEASES: Final = (task.TaskLeased, task.EvalLeased, task.GroupLeased)
"""Events that give work to an explorer."""
_ANSWER: Final = Struct("<QQII")
"""Layout of a row of `Facts.answers`: key of lease and writer, position, experiment, and number of the rollout."""
_KEY: Final = Struct("<Q")
"""Layout of a row of `Facts.leases`: the key of a lease and its holder."""
_MASK_32_BITS: Final = (1 << 32) - 1
"""Mask of the lower 32 bits of a number."""
_KEY_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd factor by which the rollouts of one lease get different keys."""
_BATCH_ROWS: Final = 1_000_000
"""Approximate number of answers held in memory at once."""

RecordAt = Callable[[Partition, int], Awaitable[Record | None]]
"""An async function reading one record again; None for a missing or damaged one."""
Answer = experience.ExperienceProduced | experience.RolloutFailed | experience.EvalScored | experience.GroupProcessed
"""An event that answers a lease."""


def answered(facts: Facts, evidence: Evidence, event: Answer, decoded: Decoded) -> None:
    """Stores writer, lease and rollout (or first row) of an answer, for `judge_answers`."""
    at = place_number(decoded.partition.number, decoded.offset)
    key = holder_key(evidence, event.lease, decoded.head.source)
    match event:
        case experience.EvalScored():
            number = event.row_start
        case experience.GroupProcessed():
            number = 0  # one answer to each lease
        case _:
            number = event.rollout
    facts.answers.add(_ANSWER.pack(key, at, evidence.index, number & _MASK_32_BITS))


def lease_given(facts: Facts, evidence: Evidence, event: task.TaskLeased | task.EvalLeased | task.GroupLeased) -> None:
    """Stores the holder of a lease, even of a void lease, because its worker could not know that it is void."""
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
            partition, offset = _position_of(row)
            if offset >= facts.leased_below.get(partition, 0):
                continue  # the lease may have been written after the end of the reading of leases
            record = await record_at(partition, offset)
            head = head_of(record) if record is not None else None
            facts.note(RULE, evidence.id, f"{_name_of(head)} at {partition}@{offset} is of no lease held by its writer")


async def _note_second_answers(
    facts: Facts, evidences: list[Evidence], rows: NDArray[Any], record_at: RecordAt
) -> None:
    """Notes rollouts of a lease answered twice by one writer with different content; `rows` are all answers to the
    leases compared.
    """
    # A rollout leased again has two answers with one id, each for a separate lease: no finding.
    keys = rows["key"] + rows["number"].astype("<u8") * _KEY_FACTOR
    order = np.lexsort((rows["place"], keys))
    for index in np.flatnonzero(keys[order][1:] == keys[order][:-1]):
        first, again = rows[order[index]], rows[order[index + 1]]
        if (first["key"], first["number"]) != (again["key"], again["number"]):
            continue
        earlier = await record_at(*_position_of(first))
        later = await record_at(*_position_of(again))
        if earlier is None or later is None or _alike(earlier, later):
            continue
        finding = f"{_name_of(head_of(later))} at {place(later)} answers a rollout of its lease"
        evidence = evidences[int(again["experiment"])]
        facts.note(RULE, evidence.id, f"{finding} differently from {place(earlier)}")


def _alike(earlier: Record, later: Record) -> bool:
    """True if both records have equal payloads, or if a payload was dropped."""
    return earlier.thin or later.thin or earlier.value == later.value


def _position_of(row: Any) -> tuple[Partition, int]:
    """Returns partition and offset of an answer."""
    number, offset = place_of(int(row["place"]))
    return Partition(topics.EXPERIENCES, number), offset


def _name_of(head: Head | None) -> str:
    """Returns type and source of a record, for a finding; "the record" for one that cannot be read."""
    return f"{head.type} of {head.source!r}" if head is not None else "the record"


def _answer_batches(facts: Facts) -> Iterator[NDArray[Any]]:
    """Yields all answers in batches of about `_BATCH_ROWS`, with the answers to one lease in one batch."""
    count = -(-len(facts.answers) // _BATCH_ROWS)
    batches = [facts.answers] if count <= 1 else [Spool(facts.scratch, ANSWERS.itemsize) for _ in range(count)]
    if count > 1:
        for block in facts.answers.blocks():
            rows = np.frombuffer(block, dtype=ANSWERS)
            batch_of_row = rows["key"] % np.uint64(count)
            for number, batch in enumerate(batches):
                batch.add(rows[batch_of_row == number].tobytes())
    for batch in batches:
        if len(batch):
            yield np.concatenate([np.frombuffer(block, dtype=ANSWERS) for block in batch.blocks()])


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
"""Functions that store an answer for `judge_answers`, by type of event; `rollouts` stores experiences and scores."""
