"""The log on Kafka against what only a cluster does: brokers that die, several writers, other programs' records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.errors import CodecError, LogLossError, UnreachableError
from rftd.ops.health import Diagnosis
from rftd.ops.ids import SystemIds
from rftd.streams.kafka.backend import KafkaBackend, missing_records
from rftd.streams.kafka.connect import arguments
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.partitions import Names
from rftd.streams.kafka.records import WINDOW_RECORDS
from rftd.streams.kafka.settings import KafkaSettings, kafka_url
from rftd.streams.kafka.topics import configs_of
from rftd.streams.log.chain import Mark
from rftd.streams.log.codec import decode_head
from rftd.streams.log.envelope import Draft, Position, Record, Stretch
from rftd.streams.log.lost_records import Witness, deleted_from, losses_of, still_lost
from rftd.streams.log.topics import TOPICS, Partition

pytestmark = pytest.mark.anyio

A = Partition("rftd.experiments", 0)
B = Partition("rftd.experiences", 3)
KILLS = 3


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


def draft(number: int, partition: Partition = A, value: bytes | None = None) -> Draft:
    return Draft(partition, UUID(int=number + 1), b"head-%d" % number, value or b"value-%d" % number)


def number_of(record: Record) -> int:
    return int(record.head.removeprefix(b"head-"))


async def all_of(log: KafkaLog, partition: Partition) -> list[Record]:
    found: list[Record] = []
    while records := await log.read(partition, found[-1].offset + 1 if found else 0):
        found += records
    return found


async def insistent(log: KafkaLog, drafts: Sequence[Draft]) -> list[Position]:
    """An append as the roles do it: the same drafts until they are in."""
    while True:
        try:
            return await log.append(drafts)
        except UnreachableError:
            await asyncio.sleep(0.1)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition is a plain value of another task
        await asyncio.sleep(0.01)


async def test_reading_back_knows_every_id_of_a_long_stretch(settings: KafkaSettings) -> None:
    records = WINDOW_RECORDS + 1000
    async with opened(settings) as log:
        for start in range(0, records, 1000):
            await log.append([draft(number) for number in range(start, min(start + 1000, records))])
        window = await log.read_back(A, 0, records)
        assert window.find(str(draft(0).id).encode()) == 0
        assert window.find(str(draft(records - 1).id).encode()) == records - 1


@pytest.mark.slow
async def test_a_broker_killed_under_appends_loses_and_repeats_nothing(own_servers: Path) -> None:
    broker = KafkaBroker(own_servers / "kafka")
    await asyncio.to_thread(broker.start)
    settings = KafkaSettings(bootstrap=broker.bootstrap, prefix="kill.")
    stop = asyncio.Event()
    acknowledged: dict[int, Position] = {}
    delivered: dict[Partition, list[int]] = {A: [], B: []}
    produced = finished = 0

    async def produce(log: KafkaLog, producer: int) -> None:
        nonlocal produced, finished
        number = producer * 1_000_000
        while not stop.is_set():
            batch = [draft(number + index, A if producer % 2 else B) for index in range(1 + number % 7)]
            for item, position in zip(batch, await insistent(log, batch), strict=True):
                acknowledged[item.id.int - 1] = position
            number += len(batch)
            produced += len(batch)
        finished += 1

    def more(count: int) -> Callable[[], bool]:
        return lambda: produced >= count

    async def follow(log: KafkaLog) -> None:
        follower = log.subscribe({A: 0, B: 0})
        while finished < 8 or sum(map(len, delivered.values())) < produced:
            for record in await follower.next(wait_s=1):
                delivered[record.partition].append(number_of(record))

    async with opened(settings) as log, asyncio.timeout(240), asyncio.TaskGroup() as group:
        for producer in range(8):
            group.create_task(produce(log, producer))
        group.create_task(follow(log))
        for _ in range(KILLS):
            await until(more(produced + 500))
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await until(more(produced + 500))
        stop.set()
    async with opened(settings) as log:
        for partition in (A, B):
            records = await all_of(log, partition)
            found = [number_of(record) for record in records]
            assert found == delivered[partition]
            places = {number: position for number, position in acknowledged.items() if position.partition == partition}
            assert {number_of(record): Position(partition, record.offset) for record in records} == places
            for producer in range(8):
                own = [number for number in found if number // 1_000_000 == producer]
                assert own == sorted(set(own))
    await asyncio.to_thread(broker.kill)


async def test_an_append_without_a_broker_says_so_and_goes_through_later(own_servers: Path) -> None:
    broker = KafkaBroker(own_servers / "kafka")
    await asyncio.to_thread(broker.start)
    async with opened(KafkaSettings(bootstrap=broker.bootstrap)) as log:
        await log.append([draft(0)])
        await asyncio.to_thread(broker.kill)
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            waiting = group.create_task(log.append([draft(1)]))
            await until(lambda: log.failure is not None)
            assert isinstance(log.failure, UnreachableError)
            await asyncio.to_thread(broker.start)
            assert await waiting == [Position(A, 1)]
        assert log.failure is None
        assert [number_of(record) for record in await all_of(log, A)] == [0, 1]
    await asyncio.to_thread(broker.kill)


async def test_two_processes_write_and_read_one_log(settings: KafkaSettings) -> None:
    async with opened(settings) as one, opened(settings) as two:
        follower = one.subscribe({A: 0})
        assert await follower.next(wait_s=0) == []
        for number in range(20):
            log = (one, two)[number % 2]
            [position] = await log.append([draft(number)])
            assert position == Position(A, number)
            other = (two, one)[number % 2]
            assert [number_of(record) for record in await other.read(A, number)] == [number]
        seen: list[Record] = []
        while len(seen) < 20:
            seen += await follower.next(wait_s=5)
        assert [number_of(record) for record in seen] == list(range(20))
        assert await one.heads() == await two.heads()


async def test_a_repeated_record_is_delivered_once(settings: KafkaSettings) -> None:
    async with opened(settings) as one:
        await one.append([draft(number) for number in range(5)])
        async with opened(settings) as two:
            await two.append([draft(100)])  # it looked at the newest ids, then another writer repeats one
            await one.append([draft(7)])
            assert await two.append([draft(7)]) == [Position(A, 7)]
            await two.append([draft(8)])
            assert await two.append([draft(3)]) == [Position(A, 3)]
    async with opened(settings) as log:
        for start in (0, 7):
            follower = log.subscribe({A: start})
            seen: list[int] = []
            while 8 not in seen:
                seen += [number_of(record) for record in await follower.next(wait_s=5)]
            assert seen == [0, 1, 2, 3, 4, 100, 7, 8][start:] if start == 0 else [8]
            assert follower.positions == {A: 9}


async def test_old_records_are_read_wherever_a_read_begins(settings: KafkaSettings) -> None:
    """Onwards, over a little, over much, and back: below what the tail holds."""
    count = 4000
    async with opened(settings) as log:
        await log.append([draft(number, B) for number in range(count)])
    async with opened(settings) as log:
        for start, most in ((0, 5), (5, 3), (10, 4), (11, 2), (3, 2), (200, 70), (1500, 9), (1400, 1), (7, count)):
            found = await log.read(B, start, max_records=most)
            assert [record.offset for record in found] == list(range(start, start + len(found)))
            assert [number_of(record) for record in found] == [record.offset for record in found]
            assert 1 <= len(found) <= most
        assert len(await all_of(log, B)) == count


async def test_reads_that_wait_together_get_each_its_own(settings: KafkaSettings) -> None:
    """Overlapping ones, far ones, in several partitions, below what the tail holds; truncated ones go on above."""
    count, places = 3000, {A: 0, B: 10_000}
    async with opened(settings) as log:
        for place, first in places.items():
            await log.append([draft(first + number, place, bytes(700)) for number in range(count)])
    async with opened(settings) as log:
        wanted = [
            (place, start, most) for place in places for start in (900, 4, 0, 6, 930, 400) for most in (1, 8, 200)
        ]
        reads = (log.read(place, start, max_records=most) for place, start, most in wanted)
        for (place, start, most), found in zip(wanted, await asyncio.gather(*reads), strict=True):
            assert [record.offset for record in found] == list(range(start, start + len(found)))
            assert [number_of(record) for record in found] == [places[place] + record.offset for record in found]
            assert 1 <= len(found) <= most
        assert [each.offset for each in await log.read(A, 5, max_records=9, max_size_bytes=1500)] == [5, 6]
        assert [each.offset for each in await log.read(A, 5, max_records=9, max_size_bytes=1)] == [5]
        await log.truncate(A, 100)
        lost, kept = await asyncio.gather(log.read(A, 3, max_records=4), log.read(B, 3, max_records=4))
        assert lost[0].offset == 100
        assert [record.offset for record in kept] == [3, 4, 5, 6]


async def test_other_programs_records_are_delivered(settings: KafkaSettings) -> None:
    async with opened(settings) as log:
        await log.append([draft(0)])
        producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap)
        await producer.start()
        topic = settings.prefix + A.stream
        event = [
            ("ce_specversion", b"1.0"),
            ("ce_id", b"order-17"),
            ("ce_type", b"experiment.submitted"),
            ("ce_source", b"shop"),
            ("ce_time", b"2024-05-01T12:00:00Z"),
        ]
        await producer.send_and_wait(topic, b"noise", partition=0)
        await producer.send_and_wait(topic, b"payload", partition=0, headers=event)
        await producer.send_and_wait(topic, b"payload", partition=0, headers=event)
        await producer.send_and_wait(topic, None, key=b"tombstone", partition=0)
        await producer.stop()
        records = await log.read(A, 0)
        assert [(record.offset, record.value) for record in records] == [
            (0, b"value-0"),
            (1, b"noise"),
            (2, b"payload"),
            (4, b""),
        ]
        with pytest.raises(CodecError):
            decode_head(records[1])
        head = decode_head(records[2])
        assert (head.type, head.source, head.version, head.time_ns) == (
            "experiment.submitted",
            "shop",
            1,
            1_714_564_800_000_000_000,
        )
        await log.check_heads(await log.heads())


async def test_records_carry_cloud_events_attributes(settings: KafkaSettings) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.structs import TopicPartition

    from rftd.streams.events.experiment import ExperimentPaused
    from rftd.streams.log.codec import Writer

    clock = SystemClock()
    ids = SystemIds(clock)
    experiment = ids.new()
    writer = Writer(source="daemon/h", clock=clock, ids=ids)
    made = writer.draft(ExperimentPaused(), experiment=experiment, traceparent="00-1-2-01")
    async with opened(settings) as log:
        await log.append([made])
        [record] = await log.read(made.partition, 0)
        assert (record.head, record.value) == (made.head, made.value)
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([TopicPartition(settings.prefix + made.partition.stream, made.partition.number)])
    message = await consumer.getone()
    await consumer.stop()
    headers = dict(message.headers)
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_id"] == str(made.id).encode()
    assert headers["ce_type"] == b"experiment.paused"
    assert headers["ce_subject"] == str(experiment).encode() == message.key
    assert headers["ce_source"] == b"daemon/h"
    assert headers["content-type"] == b"application/msgpack"
    assert headers["traceparent"] == b"00-1-2-01"
    assert headers["ce_time"].endswith(b"Z")


async def test_a_deleted_topic_is_a_loss(settings: KafkaSettings) -> None:
    from rftd.streams.kafka.topics import delete_topics

    async with opened(settings) as log:
        await log.append([draft(number) for number in range(3)])
        heads = await log.heads()
    await delete_topics(settings)
    async with opened(settings) as log:
        with pytest.raises(LogLossError, match=r"rftd.experiments/0@2 was acknowledged and is gone"):
            await log.check_heads(heads)
        assert heads[A] == Mark(3, heads[A].chain)


async def test_records_of_truth_that_somebody_deleted_are_known_at_start_and_to_the_doctor(
    settings: KafkaSettings,
) -> None:
    async with opened(settings) as log:
        await log.append([draft(number) for number in range(5)])
        assert await missing_records(settings, within_s=30) == ([], 5, 5)
        assert await deleted_from(log) == []
        await log.truncate(A, 2)
        assert await log.deleted() == (await missing_records(settings, within_s=30)).gone == [(A, Stretch(0, 2))]
        (loss,) = await deleted_from(log)
        assert loss.where == f"{A}@1"
        assert "was deleted, and more before it (evidence: the first" in loss.what
        assert await still_lost(log, [loss]) == {loss.head.ref}
    assert _missing(await KafkaBackend().diagnose(kafka_url(settings))) == f"{A}@0 to 1"


async def test_records_that_were_compacted_away_are_known_to_whoever_reads_past_them(settings: KafkaSettings) -> None:
    """Somebody tried `cleanup.policy=compact` and set it back: every topic is as it must be again."""
    async with opened(settings) as log:
        await log.append([draft(number) for number in range(3)])
        before = await log.heads()
        await _configured(settings, {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.001"})
        await log.append([draft(number) for number in range(3, 9)])  # in segments of their own
        await log.append([draft(9)])
        await _configured(settings, {"cleanup.policy": "compact", "segment.ms": "1", "max.compaction.lag.ms": "1"})
        async with asyncio.timeout(120):
            while not (gone := (await missing_records(settings, within_s=30)).gone):  # noqa: ASYNC110 (of a broker)
                await asyncio.sleep(0.5)
        await _configured(settings, {})
    ((partition, (first, end)),) = gone
    assert partition == A
    assert 0 <= first < end <= 9
    async with opened(settings) as log:
        assert await deleted_from(log) == [], "nobody has read there"
        await all_of(log, A)
        (loss,) = await deleted_from(log)
        assert loss.where == f"{A}@{end - 1}"
        assert "was deleted" in loss.what
        assert await still_lost(log, [loss]) == {loss.head.ref}
        subscription = log.subscribe({A: 0})
        assert number_of((await subscription.next(wait_s=30))[0]) == end
        await subscription.close()
        (lost,) = await losses_of(log, [Witness("somebody", before)])
        assert lost.where == f"{A}@2"
    assert _missing(await KafkaBackend().diagnose(kafka_url(settings))) == f"{A}@{first} to {end - 1}"


def _missing(findings: list[Diagnosis]) -> str:
    """Which records the doctor misses."""
    (found,) = (each for each in findings if each.check == "records")
    assert found.status == "fail"
    return found.what.partition(" were deleted")[0]


async def _configured(settings: KafkaSettings, config: dict[str, str]) -> None:
    """Sets the topic of A to this, and everything else of it to what `rftd` creates it with."""
    name = Names(settings.prefix).kafka(A).topic
    admin = AIOKafkaAdminClient(**arguments(settings))
    await admin.start()
    try:
        whole = configs_of(TOPICS[A.stream], settings.replication) | config
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=whole)])
    finally:
        await admin.close()


async def test_the_chains_of_many_records_are_those_that_a_read_shows(settings: KafkaSettings) -> None:
    async with opened(settings) as log:
        for start in range(0, 300, 30):
            numbers = range(start, start + 30)
            await log.append([draft(number, A if number % 3 else B, bytes(700)) for number in numbers])
        heads = await log.heads()
        chains = {
            (partition, record.offset): record.chain
            for partition in (A, B)
            for record in await log.read(partition, 0, max_size_bytes=1 << 24)
        }
        assert len(chains) == 300
        offsets = {partition: range(0, heads[partition].next_offset + 5, 7) for partition in (A, B)}
        wanted = {(partition, offset) for partition, places in offsets.items() for offset in places}
        assert await log.chains(offsets) == {place: chains[place] for place in wanted & chains.keys()}
        # What is remembered otherwise, or lies beyond the end, is a loss; what is there is none.
        marks = {partition: Mark(offset + 1, chain) for (partition, offset), chain in chains.items() if offset == 50}
        assert await losses_of(log, [Witness("somebody", marks)]) == []
        wrong = Witness("somebody", {A: Mark(51, bytes(32)), B: Mark(heads[B].next_offset + 1, bytes(32))})
        assert {loss.where for loss in await losses_of(log, [wrong])} == {f"{A}@50", f"{B}@{heads[B].next_offset}"}
