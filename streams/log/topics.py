"""The streams: names, partitions, retention. Few, and none per experiment."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import xxhash

from rftd.ops import limits


class Partition(NamedTuple):
    """One totally ordered sequence of records, named by stream and number: `rftd.tasks/3`."""

    stream: str
    """Name of the stream."""
    number: int
    """Number of the partition within its stream, from 0."""

    def __str__(self) -> str:
        return f"{self.stream}/{self.number}"


class Topic(msgspec.Struct, frozen=True):
    """A stream with its number of partitions; `retention_s` is None for streams that keep every record."""

    name: str
    """Name of the stream."""
    partitions: int
    """Number of partitions."""
    retention_s: float | None = None
    """Seconds for which records stay; None: for ever."""
    keyed: bool = False
    """True if all records of an experiment are in one partition, chosen by its id, so that they are ordered."""
    events: bool = True
    """False for the stream of requests, where other programs write and no event takes effect."""


EXPERIMENTS: Final = "rftd.experiments"
"""Stream of an experiment's life, plans and steps."""
TASKS: Final = "rftd.tasks"
"""Stream of tasks: added ones, leases of explorers, retries, and closed groups."""
EXPERIENCES: Final = "rftd.experiences"
"""Stream of explorers' results."""
WEIGHTS: Final = "rftd.weights"
"""Stream of announced weight versions."""
CHECKPOINTS: Final = "rftd.checkpoints"
"""Stream of committed checkpoints."""
WORKERS: Final = "rftd.workers"
"""Stream of workers' starts and ends."""
HEARTBEATS: Final = "rftd.heartbeats"
"""Stream of workers' signs of life."""
DEADLETTERS: Final = "rftd.deadletters"
"""Stream of pointers to records skipped by every reader, and of verdicts about them."""
REQUESTS: Final = "rftd.requests"
"""Stream of requests by other programs."""

# The number of partitions of a keyed stream never changes in place: a key would move.
TOPICS: Final = {
    topic.name: topic
    for topic in (
        Topic(EXPERIMENTS, 4, keyed=True),
        Topic(TASKS, limits.WORKER_SLOTS),
        Topic(EXPERIENCES, 8),
        Topic(WEIGHTS, 4, keyed=True),
        Topic(CHECKPOINTS, 4, keyed=True),
        Topic(WORKERS, 1),
        Topic(HEARTBEATS, 1, retention_s=3600.0),
        Topic(DEADLETTERS, 1),
        Topic(REQUESTS, 4, events=False),
    )
}
"""All streams, by name."""

KEYED: Final = tuple(topic.name for topic in TOPICS.values() if topic.keyed)
"""Streams with all records of an experiment in one partition, chosen by its id."""

TRUTH: Final = tuple(
    Partition(topic.name, number)
    for topic in TOPICS.values()
    if topic.retention_s is None
    for number in range(topic.partitions)
)
"""Every partition that keeps all records, those of requests included."""

EVENTS: Final = tuple(partition for partition in TRUTH if TOPICS[partition.stream].events)
"""Every partition of `TRUTH` except those of requests."""

# Heartbeats are no truth: readers follow from the present on, and no snapshot or fence vouches for heartbeats.
EVERY_PARTITION: Final = (*TRUTH, Partition(HEARTBEATS, 0))
"""All partitions: those of `TRUTH`, with requests, and that of heartbeats."""


_PARTITIONS: Final = {
    topic.name: tuple(Partition(topic.name, number) for number in range(topic.partitions)) for topic in TOPICS.values()
}
"""The partitions of each stream, by its name."""


def partition_of(stream: str, key: UUID) -> Partition:
    """Returns the partition of `stream` for a key; stable across machines and releases."""
    partitions = _PARTITIONS[stream]
    # Neither Python's hash, different in every process, nor Kafka's partitioner: both backends must agree, and later
    # releases with them.
    return partitions[xxhash.xxh3_64_intdigest(key.bytes) % len(partitions)]


def may_hold(partition: Partition, experiment: UUID) -> bool:
    """True if the partition is one where records of the experiment belong."""
    topic = TOPICS[partition.stream]
    return topic.events and (not topic.keyed or partition == partition_of(partition.stream, experiment))
