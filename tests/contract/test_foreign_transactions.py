"""The log on Kafka beside a program that writes in transactions: their markers take offsets, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from aiokafka import AIOKafkaProducer

from rftd.daemon.run.why.answer import blocked_log
from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.kafka.backend import missing_records
from rftd.streams.kafka.connect import arguments
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.partitions import Names
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.log.envelope import Draft, Record
from rftd.streams.log.topics import Partition

pytestmark = pytest.mark.anyio

A = Partition("rftd.experiments", 0)


@pytest.fixture
def settings(kafka_broker: KafkaBroker, kafka_prefix: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=kafka_broker.bootstrap, prefix=kafka_prefix)


@asynccontextmanager
async def opened(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    clock = SystemClock()
    log = await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def foreign(settings: KafkaSettings) -> AsyncIterator[AIOKafkaProducer]:
    """A producer of somebody else's, which writes exactly once."""
    producer = AIOKafkaProducer(**arguments(settings), transactional_id=f"{settings.prefix}sink")
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def draft(number: int) -> Draft:
    return Draft(A, UUID(int=number + 1), b"head-%d" % number, b"value-%d" % number)


async def in_transaction(
    producer: AIOKafkaProducer, settings: KafkaSettings, values: int, *, keep: bool = True
) -> list[int]:
    """The offsets of the records that stay. The marker follows at once, or after what is appended meanwhile."""
    name = Names(settings.prefix).kafka(A)
    await producer.begin_transaction()
    stored = [
        await producer.send_and_wait(name.topic, b"theirs-%d" % number, partition=name.partition)
        for number in range(values)
    ]
    await (producer.commit_transaction() if keep else producer.abort_transaction())
    return [record.offset for record in stored] if keep else []


async def all_of(log: KafkaLog) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(30):
        while records := await log.read(A, found[-1].offset + 1 if found else 0):
            found += records
    return found


async def test_markers_of_transactions_are_no_loss(settings: KafkaSettings) -> None:
    async with opened(settings) as log, foreign(settings) as producer:
        kept: list[int] = []
        for number, (values, keep) in enumerate([(2, True), (3, False), (1, True), (1, False)]):
            kept += [position.offset for position in await log.append([draft(number)])]
            kept += await in_transaction(producer, settings, values, keep=keep)
        # Markers are written after the producer is told: the end is stable once a new transaction may begin.
        await in_transaction(producer, settings, 1, keep=False)
        assert [record.offset for record in await all_of(log)] == kept
        assert await log.deleted() == []
        remembered = await log.heads()
        assert remembered[A].next_offset == kept[-1] + 1
        subscription = log.subscribe({A: 0})
        seen: list[int] = []
        async with asyncio.timeout(30):
            while len(seen) < len(kept):
                seen += [record.offset for record in await subscription.next(wait_s=1.0)]
        await subscription.close()
        assert seen == kept
    async with opened(settings) as log:
        for start in range(kept[-1] + 3):
            offsets = [record.offset for record in await log.read(A, start)]
            expected = [offset for offset in kept if offset >= start]
            assert offsets == expected[: len(offsets)] and bool(offsets) == bool(expected)
        await log.check_heads(remembered)
        assert (await log.heads())[A] == remembered[A]
        assert remembered[A].chain == (await log.read(A, kept[-1]))[0].chain
        assert await log.deleted() == []
    assert (await missing_records(settings, within_s=30)).gone == []


async def test_a_transaction_that_is_left_open_is_named_until_it_ends(settings: KafkaSettings) -> None:
    async with opened(settings) as log, foreign(settings) as producer:
        subscription = log.subscribe({A: 0})
        await log.append([draft(0)])
        assert [record.offset for record in await subscription.next(wait_s=30)] == [0]
        assert log.held_back is None and list(blocked_log(log)) == []
        name = Names(settings.prefix).kafka(A)
        await producer.begin_transaction()
        await producer.send_and_wait(name.topic, b"theirs", partition=name.partition)
        await log.append([draft(1)])
        async with asyncio.timeout(30):
            while log.held_back is None:
                assert await subscription.next(wait_s=0.2) == []
        held = log.held_back
        assert held is not None and (held.partition, held.first, held.end) == (A, 1, 3)
        (wait,) = blocked_log(log)
        assert wait.state == "transaction_open"
        assert wait.waiting_for.startswith(f"cannot read 2 offsets of {A}, from 1 on: another program's transaction")
        await producer.commit_transaction()
        seen: list[int] = []
        async with asyncio.timeout(30):
            while len(seen) < 2:
                seen += [record.offset for record in await subscription.next(wait_s=1.0)]
            while log.held_back is not None:
                assert await subscription.next(wait_s=0.2) == []
        assert seen == [1, 2]
        await subscription.close()
