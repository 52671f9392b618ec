"""Partitions of streams as Kafka names them."""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from rftd.streams.topics import EVERY_PARTITION, Partition


class Names:
    """Both directions between `Partition` and aiokafka's `TopicPartition`, for one prefix."""

    def __init__(self, prefix: str) -> None:
        self._kafka = {
            partition: TopicPartition(prefix + partition.stream, partition.number) for partition in EVERY_PARTITION
        }
        self._ours = {name: partition for partition, name in self._kafka.items()}

    @property
    def every(self) -> list[TopicPartition]:
        """All partitions of all streams."""
        return list(self._ours)

    def kafka(self, partition: Partition) -> TopicPartition:
        """The name for Kafka."""
        return self._kafka[partition]

    def ours(self, name: TopicPartition) -> Partition:
        """Back again."""
        return self._ours[name]


def assign_paused(consumer: AIOKafkaConsumer, names: Names) -> None:
    """Assigns every partition, all paused: a later change of the assignment would drop what was fetched."""
    consumer.assign(names.every)
    for name in names.every:
        consumer.seek(name, 0)
        consumer.pause(name)
