"""Reading 2 KB events from a real Kafka through a subscription and decoding them, beside bare getmany and decode.

`python -P tests/bench/kafka_consume.py [--bootstrap HOST:PORT]` prints one JSON object. The bar: 70 % of bare.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from statistics import median
from uuid import UUID

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.events.experience import RolloutFailed
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.kafka.topics import delete_topics
from rftd.streams.log.codec import Writer, decode
from rftd.streams.log.envelope import Decoded, Draft, Record
from rftd.streams.log.follower import Follower
from rftd.streams.log.topics import EXPERIENCES, Partition

sys.path.insert(0, str(Path(__file__).parent))
from figures import median_ratio
from kafka_produce import PARTITIONS, main_with, stopwatch

TEXT_SIZE_BYTES = 1900


class Figures(msgspec.Struct):
    """Medians over the rounds."""

    events_per_s: float
    bare_events_per_s: float
    ratio_to_bare: float
    cpu_us_per_event: float
    bare_cpu_us_per_event: float
    rounds: int
    events: int


class Count:
    """A fold that counts."""

    def __init__(self) -> None:
        self.events = 0

    def apply(self, decoded: Decoded) -> None:
        """Takes one event in."""
        self.events += 1


def measure(bootstrap: str, *, rounds: int = 3, events: int = 40_000) -> Figures:
    """Interleaved rounds of a follower that catches up and a bare consumer, over the same events."""
    return asyncio.run(_measure(bootstrap, rounds, events))


async def _measure(bootstrap: str, rounds: int, events: int) -> Figures:
    settings = KafkaSettings(bootstrap=bootstrap, prefix=f"consume-{time.time_ns()}.", compression="zstd")
    experiment, drafts = make_events(events)
    clock = SystemClock()
    log = await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))
    for start in range(0, events, 1000):
        await log.append(drafts[start : start + 1000])
    await log.close()
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(await follow(settings, experiment, events))
        bare.append(await consume(settings, events))
    await delete_topics(settings)
    return Figures(
        events_per_s=round(events / median(wall for wall, _ in ours)),
        bare_events_per_s=round(events / median(wall for wall, _ in bare)),
        ratio_to_bare=median_ratio((wall for wall, _ in bare), (wall for wall, _ in ours), 3),
        cpu_us_per_event=round(1e6 * median(cpu for _, cpu in ours) / events, 1),
        bare_cpu_us_per_event=round(1e6 * median(cpu for _, cpu in bare) / events, 1),
        rounds=rounds,
        events=events,
    )


def make_events(events: int) -> tuple[UUID, list[Draft]]:
    """Failed rollouts with random error texts."""
    random = np.random.default_rng(7)
    clock = SystemClock()
    ids = SystemIds(clock)
    experiment = ids.new()
    writer = Writer(source="explorer/bench", clock=clock, ids=ids)
    found = []
    for number in range(events):
        text = random.bytes(TEXT_SIZE_BYTES // 2).hex()
        event = RolloutFailed(group=experiment, rollout=number, stage=0, lease=experiment, code="c", reason=text)
        found.append(writer.draft(event, experiment=experiment, partition=Partition(EXPERIENCES, number % PARTITIONS)))
    return experiment, found


async def follow(settings: KafkaSettings, experiment: UUID, events: int) -> tuple[float, float]:
    """Seconds until a follower has folded everything: wall, CPU."""
    clock = SystemClock()
    log = await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))
    fold = Count()
    positions = {Partition(EXPERIENCES, number): 0 for number in range(PARTITIONS)}
    follower = Follower(log, fold, experiment=experiment, positions=positions, clock=clock)
    with stopwatch() as spent:
        while fold.events < events:
            await follower.pump(1.0)
    assert fold.events == events
    await follower.close()
    await log.close()
    return spent[0], spent[1]


async def consume(settings: KafkaSettings, events: int) -> tuple[float, float]:
    """The same by a bare consumer that decodes what it gets."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_partition_fetch_bytes=4 << 20,
    )
    await consumer.start()
    names = [TopicPartition(settings.prefix + EXPERIENCES, number) for number in range(PARTITIONS)]
    consumer.assign(names)
    for name in names:
        consumer.seek(name, 0)
    fold = Count()
    with stopwatch() as spent:
        while fold.events < events:
            for name, messages in (await consumer.getmany(timeout_ms=1000, max_records=1024)).items():
                partition = Partition(EXPERIENCES, name.partition)
                for message in messages:
                    head = dict(message.headers)["rftd-head"]
                    fold.apply(decode(Record(partition, message.offset, b"", head, message.value)))
    await consumer.stop()
    return spent[0], spent[1]


if __name__ == "__main__":
    main_with(measure)
