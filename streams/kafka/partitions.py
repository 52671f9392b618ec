"""Kafka's names of the streams' partitions, and their first and next offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka
from aiokafka.structs import TopicPartition

from rftd.streams.kafka.connect import arguments, translate
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.log.topics import EVERY_PARTITION, Partition


class Names:
    """Conversion between `Partition` and Kafka's topic partitions, for one topic prefix."""

    def __init__(self, prefix: str) -> None:
        """Creates the names of all partitions, with the topics' prefix."""
        self._kafka = {
            partition: TopicPartition(prefix + partition.stream, partition.number) for partition in EVERY_PARTITION
        }
        self._ours = {name: partition for partition, name in self._kafka.items()}

    @property
    def every(self) -> list[TopicPartition]:
        """All partitions of all streams, in Kafka's form."""
        return list(self._ours)

    def kafka(self, partition: Partition) -> TopicPartition:
        """Returns the topic partition of a partition."""
        return self._kafka[partition]

    def ours(self, name: TopicPartition) -> Partition:
        """Returns the partition of a topic partition."""
        return self._ours[name]


def assign_paused(consumer: AIOKafkaConsumer, names: Names) -> None:
    """Assigns all partitions to a consumer, paused; changing the assignment later would drop fetched records."""
    consumer.assign(names.every)
    for name in names.every:
        consumer.seek(name, 0)
        consumer.pause(name)


class Offsets:
    """First and next offsets of partitions, asked from the cluster; raises the errors of
    `rftd.streams.kafka.connect`.
    """

    def __init__(self, settings: KafkaSettings, names: Names) -> None:
        """Creates the consumer used for the questions; `start` connects it."""
        self._settings = settings
        self._names = names
        self._consumer = AIOKafkaConsumer(
            group_id=None, enable_auto_commit=False, isolation_level="read_committed", **arguments(settings)
        )

    @property
    def client(self) -> Any:
        """aiokafka's client of this consumer, whose connections are not blocked by requests waiting for records."""
        return self._consumer._client

    async def start(self) -> None:
        """Connects to the cluster and loads the metadata of all topics."""
        try:
            await self._consumer.start()
            assign_paused(self._consumer, self._names)
            await self.client.force_metadata_update()  # else the first answer waits for each topic in turn
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            raise translate(error, self._settings) from error

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the next offset of each partition under `read_committed`: the end of all replicated and stable
        records.
        """
        try:
            offsets = await self._consumer.end_offsets([self._names.kafka(partition) for partition in partitions])
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            raise translate(error, self._settings) from error
        return {self._names.ours(name): offset for name, offset in offsets.items()}

    async def starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the first retained offset of each partition."""
        try:
            offsets = await self._consumer.beginning_offsets([self._names.kafka(partition) for partition in partitions])
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            raise translate(error, self._settings) from error
        return {self._names.ours(name): offset for name, offset in offsets.items()}

    async def stop(self) -> None:
        """Disconnects from the cluster. Idempotent."""
        await self._consumer.stop()
