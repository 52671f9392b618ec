"""The log on Kafka written from a machine whose clock is wrong: its events are taken, or the reason is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.errors import UnreachableError
from rftd.ops.ids import SystemIds
from rftd.streams.kafka.backend import KafkaBackend
from rftd.streams.kafka.connect import arguments
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.partitions import Names
from rftd.streams.kafka.settings import KafkaSettings, kafka_url
from rftd.streams.kafka.topics import configs_of
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.topics import HEARTBEATS, TOPICS, Partition

pytestmark = pytest.mark.anyio

SPINE = Partition("rftd.experiments", 0)
BEATS = Partition(HEARTBEATS, 0)
HOUR_S = 3600
AHEAD_S = 2 * HOUR_S
WRITERS_TIME = {"message.timestamp.type": "CreateTime"}
COMMAND = "kafka-configs.sh --alter --topic {} --add-config message.timestamp.type=LogAppendTime"


class WrongClock(SystemClock):
    """The clock of a machine that is so many seconds ahead."""

    def __init__(self, ahead_s: int) -> None:
        self._ahead_ns = ahead_s * 1_000_000_000

    def now_ns(self) -> int:
        return super().now_ns() + self._ahead_ns


@pytest.fixture
def settings(kafka_broker: KafkaBroker, kafka_prefix: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=kafka_broker.bootstrap, prefix=kafka_prefix)


@asynccontextmanager
async def opened_with(settings: KafkaSettings, ahead_s: int) -> AsyncIterator[KafkaLog]:
    clock = WrongClock(ahead_s)
    log = await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))
    try:
        yield log
    finally:
        await log.close()


async def configure(settings: KafkaSettings, partition: Partition, config: dict[str, str]) -> None:
    """Gives the topic of a partition these settings, and otherwise those with which `rftd` creates it."""
    admin = AIOKafkaAdminClient(**arguments(settings))
    await admin.start()
    try:
        whole = configs_of(TOPICS[partition.stream], settings.replication) | config
        name = Names(settings.prefix).kafka(partition).topic
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=whole)])
    finally:
        await admin.close()


async def first_message(settings: KafkaSettings, partition: Partition) -> Any:
    """The first record of a partition as Kafka stores it."""
    consumer = AIOKafkaConsumer(**arguments(settings), auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([Names(settings.prefix).kafka(partition)])
        async with asyncio.timeout(30):
            return await consumer.getone()
    finally:
        await consumer.stop()


def draft(number: int, partition: Partition = SPINE) -> Draft:
    return Draft(partition, UUID(int=number + 1), b"head-%d" % number, b"value-%d" % number)


async def refused(
    log: KafkaLog, group: asyncio.TaskGroup
) -> tuple[UnreachableError, int, asyncio.Task[list[Position]]]:
    """The reason why appends fail, the number of the draft that waits, and its append.

    A broker learns of a topic's settings a little after they are set: until then it takes what is appended.
    """
    for number in count():
        appending = group.create_task(log.append([draft(number)]))
        while not appending.done():
            if log.failure is not None:
                assert isinstance(log.failure, UnreachableError)
                return log.failure, number, appending
            await asyncio.sleep(0.01)
    raise AssertionError


@pytest.mark.parametrize("ahead_s", [AHEAD_S, -AHEAD_S])
async def test_a_writer_whose_clock_is_two_hours_wrong_is_read_by_everybody(
    settings: KafkaSettings, ahead_s: int
) -> None:
    async with opened_with(settings, ahead_s) as writer, opened_with(settings, 0) as reader, asyncio.timeout(50):
        for number, partition in enumerate((SPINE, BEATS)):
            assert await writer.append([draft(number, partition)]) == [Position(partition, 0)]
            assert [record.head for record in await reader.read(partition, 0)] == [b"head-%d" % number]


@pytest.mark.parametrize("ahead_s", [HOUR_S // 2, -AHEAD_S])
async def test_heartbeats_are_as_old_as_the_broker_says(settings: KafkaSettings, ahead_s: int) -> None:
    """Their topic's retention goes by this time: a clock that is behind must not have them deleted at once."""
    earliest_ms = SystemClock().now_ns() // 1_000_000
    async with opened_with(settings, ahead_s) as writer:
        await writer.append([draft(0, BEATS)])
    message = await first_message(settings, BEATS)
    assert message.timestamp_type == 1, "of the broker"
    assert earliest_ms <= message.timestamp <= SystemClock().now_ns() // 1_000_000


@pytest.mark.parametrize(
    ("bounds", "ahead_s", "difference"),
    [
        ({}, AHEAD_S, "more than 1 h ahead of the broker's"),
        ({"message.timestamp.after.max.ms": "5400000"}, AHEAD_S, "more than 90 min ahead of the broker's"),
        (
            {"message.timestamp.before.max.ms": "86400000"},
            -25 * HOUR_S,
            "more than 1 h ahead of the broker's or more than 1 d behind the broker's",
        ),
    ],
)
async def test_topic_with_writer_timestamps_is_named_with_the_clock_difference(
    settings: KafkaSettings, bounds: dict[str, str], ahead_s: int, difference: str
) -> None:
    topic = Names(settings.prefix).kafka(SPINE).topic
    async with opened_with(settings, ahead_s) as wrong:
        await configure(settings, SPINE, WRITERS_TIME | bounds)
        async with asyncio.timeout(50), asyncio.TaskGroup() as group:  # within the minute for which an append is tried
            reason, number, waiting = await refused(wrong, group)
            assert f"Kafka refused records of {topic} because of their time: this machine's clock (" in reason.what
            assert reason.what.endswith(f") is {difference}")
            assert "correct the wrong clock" in (reason.fix or "")
            assert COMMAND.format(topic) in (reason.fix or "")
            await configure(settings, SPINE, {})  # what the fix says
            assert await waiting == [Position(SPINE, number)]
            assert wrong.failure is None


async def test_the_doctor_names_topics_that_keep_writers_times(settings: KafkaSettings) -> None:
    async with opened_with(settings, 0):
        findings = await KafkaBackend().diagnose(kafka_url(settings))
        assert [finding.status for finding in findings if finding.check == "topics"] == ["ok"]
        await configure(settings, SPINE, WRITERS_TIME)
        topic = Names(settings.prefix).kafka(SPINE).topic
        async with asyncio.timeout(30):  # a broker learns of a setting a little after it is set
            while True:
                findings = await KafkaBackend().diagnose(kafka_url(settings))
                (found,) = (finding for finding in findings if finding.check == "topics")
                if found.status == "warn":
                    break
    assert found.what == f"message.timestamp.type of {topic} is CreateTime, not LogAppendTime"
    assert found.fix == COMMAND.format(topic)
