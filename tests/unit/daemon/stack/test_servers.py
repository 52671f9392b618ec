"""The fixtures' servers are real, and each test has its own part of them."""

from __future__ import annotations

import os

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.daemon.stack.postgres import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("turn", [1, 2])
async def test_a_record_comes_back(kafka_broker: KafkaBroker, kafka_prefix: str, turn: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    await admin.start()
    made = await admin.create_topics([NewTopic(f"{kafka_prefix}one", 1, 1)])
    assert [code for _, code, *_ in made.topic_errors] == [0]  # and not that it exists already
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap, enable_idempotence=True) as producer:
        await producer.send_and_wait(f"{kafka_prefix}one", b"value")
    async with AIOKafkaConsumer(bootstrap_servers=kafka_broker.bootstrap) as consumer:
        partition = TopicPartition(f"{kafka_prefix}one", 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        record = await consumer.getone()
        assert (record.value, record.offset) == (b"value", 0)


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_a_database(postgres_server: PostgresServer, postgres_url: str, turn: int) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("CREATE TABLE t (n int)")  # would fail in a database that was used before
    await connection.close()
    assert postgres_server.pid is not None
    assert postgres_server.pid != os.getpid()
