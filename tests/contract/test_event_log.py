"""The contract of `EventLog`, promise by promise (the numbers are those of `rftd.streams.log.log`)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

import pytest

from rftd.ops import limits
from rftd.ops.errors import CodecError, LogLossError, UnreachableError
from rftd.streams.log.chain import GENESIS, Mark, link
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.log import EventLog, Subscription
from rftd.streams.log.topics import Partition

pytestmark = pytest.mark.anyio

A = Partition("rftd.experiments", 0)
B = Partition("rftd.experiences", 3)


class Harness(Protocol):
    """Opens the same log again and again; see conftest.py."""

    durable: bool
    chained: bool

    def open(self) -> AbstractAsyncContextManager[EventLog]: ...


def draft(number: int, partition: Partition = A, value: bytes | None = None) -> Draft:
    """The draft with id `number`."""
    return Draft(partition, UUID(int=number + 1), b"head-%d" % number, value or b"value-%d" % number)


def drafts(start: int, stop: int, partition: Partition = A) -> list[Draft]:
    return [draft(number, partition) for number in range(start, stop)]


async def all_of(log: EventLog, partition: Partition) -> list[Record]:
    """Every record of a partition, read in small pieces."""
    found: list[Record] = []
    while records := await log.read(partition, found[-1].offset + 1 if found else 0, max_records=7):
        found += records
    return found


async def numbers(log: EventLog, partition: Partition) -> list[int]:
    return [int(record.head.removeprefix(b"head-")) for record in await all_of(log, partition)]


async def test_1_what_append_returned_is_readable_there(log: EventLog) -> None:
    positions = await log.append(drafts(0, 5))
    assert positions == [Position(A, offset) for offset in range(5)]
    records = await log.read(A, 0)
    assert [(record.offset, record.head, record.value) for record in records] == [
        (offset, b"head-%d" % offset, b"value-%d" % offset) for offset in range(5)
    ]
    assert await log.append([]) == []


async def test_1_it_is_still_there_after_reopening(harness: Harness) -> None:
    if not harness.durable:
        pytest.skip("the memory log ends with its object")
    for turn in range(4):
        async with harness.open() as log:
            assert await numbers(log, A) == list(range(turn * 3))
            await log.append(drafts(turn * 3, turn * 3 + 3))


async def test_2_one_append_keeps_its_order_in_each_partition(log: EventLog) -> None:
    mixed = [draft(number, A if number % 3 else B) for number in range(30)]
    positions = await log.append(mixed)
    assert [position.partition for position in positions] == [item.partition for item in mixed]
    assert await numbers(log, A) == [number for number in range(30) if number % 3]
    assert await numbers(log, B) == [number for number in range(30) if number % 3 == 0]


async def test_2_offsets_are_gapless_and_chained(harness: Harness, log: EventLog) -> None:
    await log.append(drafts(0, 20))
    await log.append(drafts(20, 40))
    chain = GENESIS
    for expected, record in enumerate(await all_of(log, A)):
        chain = link(chain if harness.chained else GENESIS, record.head, record.value)
        assert (record.partition, record.offset, record.chain) == (A, expected, chain)
    assert (await log.heads())[A] == Mark(40, chain)


async def test_3_a_known_id_changes_nothing_and_gets_its_first_position(log: EventLog) -> None:
    first = await log.append(drafts(0, 10))
    heads = await log.heads()
    assert await log.append(drafts(0, 10)) == first
    assert await log.heads() == heads
    mixed = await log.append([draft(9), draft(10), draft(3), draft(10), draft(11)])
    assert [position.offset for position in mixed] == [9, 10, 3, 10, 11]
    assert await numbers(log, A) == list(range(12))


async def test_3_an_id_is_known_in_every_partition(log: EventLog) -> None:
    [first] = await log.append([draft(1, A)])
    assert await log.append([draft(1, B)]) == [first]
    assert await log.read(B, 0) == []


async def test_3_ids_are_known_after_reopening(harness: Harness) -> None:
    if not harness.durable:
        pytest.skip("the memory log ends with its object")
    async with harness.open() as log:
        first = await log.append(drafts(0, 100))
    async with harness.open() as log:
        assert await log.append(drafts(50, 110)) == [*first[50:], *(Position(A, offset) for offset in range(100, 110))]
        assert await numbers(log, A) == list(range(110))


async def test_3_the_same_append_from_many_producers_lands_once(log: EventLog) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(log.append(drafts(0, 50))) for _ in range(16)]
    assert {tuple(task.result()) for task in tasks} == {tuple(Position(A, offset) for offset in range(50))}
    assert await numbers(log, A) == list(range(50))


async def test_4_a_cancelled_append_can_be_retried(log: EventLog) -> None:
    for turns in range(12):
        batch = drafts(turns * 10, turns * 10 + 10)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(log.append(batch))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        assert len(await log.append(batch)) == 10
    assert await numbers(log, A) == list(range(120))


async def test_7_an_oversized_record_is_refused_and_nothing_lands(log: EventLog) -> None:
    largest = draft(1, value=bytes(limits.RECORD_SIZE_BYTES - len(b"head-1")))
    oversized = draft(2, value=bytes(limits.RECORD_SIZE_BYTES - len(b"head-2") + 1))
    with pytest.raises(CodecError, match="over the limit"):
        await log.append([draft(0), oversized])
    assert await log.read(A, 0) == []
    await log.append([draft(0), largest])
    assert [len(record.value) for record in await log.read(A, 1)] == [len(largest.value)]


async def test_7_an_append_of_too_many_records_is_refused(log: EventLog) -> None:
    with pytest.raises(CodecError, match="over the limit"):
        await log.append(drafts(0, limits.APPEND_RECORDS + 1))
    assert len(await log.append(drafts(0, limits.APPEND_RECORDS))) == limits.APPEND_RECORDS
    assert (await log.heads())[A].next_offset == limits.APPEND_RECORDS


async def test_7_reads_are_bounded_in_records_and_bytes(log: EventLog) -> None:
    await log.append([draft(number, value=bytes(1000)) for number in range(20)])
    assert len(await log.read(A, 0, max_records=3)) == 3
    assert [record.offset for record in await log.read(A, 5, max_size_bytes=3100)] == [5, 6, 7]
    assert [record.offset for record in await log.read(A, 5, max_size_bytes=1)] == [5]
    assert await log.read(A, 20) == []
    assert await log.read(A, 99) == []
    assert await log.read(B, 0) == []


async def test_7_an_append_larger_than_the_queue_goes_through(log: EventLog) -> None:
    megabyte = bytes(limits.MIB)
    count = limits.GROUP_COMMIT_SIZE_BYTES // limits.MIB + 8
    positions = await log.append([draft(number, value=megabyte) for number in range(count)])
    assert [position.offset for position in positions] == list(range(count))


async def test_7_64_producers_get_what_they_appended(log: EventLog) -> None:
    async def produce(producer: int) -> list[Position]:
        partition = Partition("rftd.experiences", producer % 8)
        return [
            position
            for turn in range(8)
            for position in await log.append(
                drafts(producer * 100 + turn * 3, producer * 100 + turn * 3 + 3, partition)
            )
        ]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(produce(producer)) for producer in range(64)]
    for producer, task in enumerate(tasks):
        partition = Partition("rftd.experiences", producer % 8)
        heads = {record.offset: record.head for record in await all_of(log, partition)}
        offsets = [position.offset for position in task.result()]
        assert offsets == sorted(offsets)
        assert [heads[offset] for offset in offsets] == [b"head-%d" % (producer * 100 + n) for n in range(24)]
    assert sum(mark.next_offset for mark in (await log.heads()).values()) == 64 * 24


async def test_6_remembered_heads_are_found_or_refused(harness: Harness) -> None:
    async with harness.open() as log:
        await log.check_heads({})
        await log.append(drafts(0, 10))
        early = await log.heads()
        await log.append(drafts(10, 20))
        await log.check_heads(early)
        await log.check_heads(await log.heads())
        await log.check_heads({B: Mark(0, GENESIS)})
        with pytest.raises(LogLossError, match=r"rftd.experiments/0@9 is not the record"):
            await log.check_heads({A: Mark(10, bytes(16))})
        with pytest.raises(LogLossError, match=r"rftd.experiments/0@20 was acknowledged and is gone"):
            await log.check_heads({A: Mark(21, bytes(16))})
        with pytest.raises(LogLossError, match=r"rftd.experiences/3@0"):
            await log.check_heads({B: Mark(1, bytes(16))})


async def test_truncation_forgets_the_oldest_and_keeps_offsets(harness: Harness) -> None:
    async with harness.open() as log:
        await log.append(drafts(0, 10))
        heads = await log.heads()
        await log.truncate(A, 4)
        await log.truncate(A, 2)
        assert [record.offset for record in await log.read(A, 0)] == [4, 5, 6, 7, 8, 9]
        await log.check_heads(heads)
        await log.truncate(A, 99)
        assert await log.read(A, 0) == []
        assert await log.heads() == heads
        await log.check_heads(heads)
        follower = log.subscribe({A: 0})
        assert await follower.next(wait_s=0) == []
        assert (await log.append([draft(50)]))[0].offset == 10
        assert [record.offset for record in await follower.next(wait_s=5)] == [10]
        await log.truncate(B, 5)


async def test_appends_after_close_are_refused(harness: Harness) -> None:
    async with harness.open() as log:
        await log.append(drafts(0, 3))
        await log.close()
        await log.close()
        with pytest.raises(UnreachableError, match="closed"):
            await log.append(drafts(3, 4))


async def take(follower: Subscription, count: int) -> list[Record]:
    """The next `count` records, however they are cut."""
    found: list[Record] = []
    while len(found) < count:
        records = await follower.next(wait_s=10)
        assert records, "nothing arrived"
        found += records
    return found


async def test_5_a_subscriber_sees_a_prefix_without_gaps(log: EventLog) -> None:
    await log.append([*drafts(0, 10), *drafts(100, 110, B)])
    follower = log.subscribe({A: 4, B: 0})
    assert await follower.next(wait_s=0, max_records=3) != []
    seen = [*await take(log.subscribe({A: 4, B: 0}), 16)]
    assert [record.offset for record in seen if record.partition == A] == [4, 5, 6, 7, 8, 9]
    assert [record.offset for record in seen if record.partition == B] == list(range(10))
    await follower.close()
    await follower.close()


async def test_5_a_subscriber_is_woken_by_an_append(log: EventLog) -> None:
    follower = log.subscribe({A: 0, B: 0})
    assert await follower.next(wait_s=0) == []
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(take(follower, 40))
        for start in range(0, 40, 4):
            await log.append([*drafts(start, start + 2), *drafts(start + 2, start + 4, B)])
    seen = waiting.result()
    assert follower.positions == {A: 20, B: 20}
    for partition in (A, B):
        assert [record.offset for record in seen if record.partition == partition] == list(range(20))


async def test_5_a_busy_partition_does_not_hide_another(log: EventLog) -> None:
    await log.append([*drafts(0, 50), *drafts(100, 102, B)])
    follower = log.subscribe({A: 0, B: 0})
    seen = [record.partition for _ in range(3) for record in await follower.next(wait_s=5, max_records=5)]
    assert seen.count(B) == 2


async def test_5_cancelling_a_wait_loses_nothing(log: EventLog) -> None:
    follower = log.subscribe({A: 0})
    seen: list[Record] = []
    for turns in range(20):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(follower.next(wait_s=10))
            await log.append(drafts(turns * 2, turns * 2 + 2))
            for _ in range(turns % 5):
                await asyncio.sleep(0)
            waiting.cancel()
        if not waiting.cancelled():
            seen += waiting.result()
    if len(seen) < 40:
        seen += await take(follower, 40 - len(seen))
    assert [record.offset for record in seen] == list(range(40))
