"""Appends of incompressible 2 KB events to a real Kafka over 4 partitions, beside bare aiokafka and confluent-kafka.

All with acks=all, idempotence and zstd. `python -P tests/bench/kafka_produce.py [--bootstrap HOST:PORT]` starts a
broker of its own unless it is given one, and prints one JSON object. The bar: 80 % of bare aiokafka.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.kafka.topics import delete_topics
from rftd.streams.log.codec import _encoder
from rftd.streams.log.envelope import Draft, Head
from rftd.streams.log.topics import EXPERIENCES, Partition

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_ratio, read_options, tell

PARTITIONS = 4
RECORD_SIZE_BYTES = 2048
BATCH_SIZE_BYTES = 512 * 1024
LINGER_MS = 10


class Figures(msgspec.Struct):
    """Medians over the rounds."""

    events_per_s: float
    aiokafka_events_per_s: float
    confluent_events_per_s: float
    ratio_to_aiokafka: float
    cpu_us_per_event: float
    aiokafka_cpu_us_per_event: float
    rounds: int
    events: int
    batch: int
    in_flight: int


def measure(bootstrap: str, *, rounds: int = 3, events: int = 40_000, batch: int = 64, in_flight: int = 32) -> Figures:
    """Interleaved rounds of ours, bare aiokafka and confluent-kafka, each with the same events."""
    ours, bare, confluent = [], [], []
    for number in range(rounds):
        drafts = make_drafts(number, events)
        settings = KafkaSettings(bootstrap=bootstrap, prefix=f"produce{number}-{time.time_ns()}.", compression="zstd")
        ours.append(asyncio.run(log_cost(settings, drafts, batch, in_flight)))
        bare.append(asyncio.run(aiokafka_cost(settings, drafts)))
        confluent.append(confluent_cost(settings, drafts))
        asyncio.run(delete_topics(settings))
    return Figures(
        events_per_s=round(events / median(wall for wall, _ in ours)),
        aiokafka_events_per_s=round(events / median(wall for wall, _ in bare)),
        confluent_events_per_s=round(events / median(wall for wall, _ in confluent)),
        ratio_to_aiokafka=median_ratio((wall for wall, _ in bare), (wall for wall, _ in ours), 3),
        cpu_us_per_event=round(1e6 * median(cpu for _, cpu in ours) / events, 1),
        aiokafka_cpu_us_per_event=round(1e6 * median(cpu for _, cpu in bare) / events, 1),
        rounds=rounds,
        events=events,
        batch=batch,
        in_flight=in_flight,
    )


def make_drafts(seed: int, events: int) -> list[Draft]:
    """Events with real attributes and random payloads, spread over the partitions."""
    random = np.random.default_rng(seed)
    clock = SystemClock()
    ids = SystemIds(clock)
    experiment = ids.new()
    found = []
    for number in range(events):
        id = ids.new()
        head = Head(
            id=id,
            type="experience.produced",
            version=1,
            experiment=experiment,
            source="explorer/bench",
            time_ns=clock.now_ns(),
        )
        encoded = _encoder.encode(head)
        value = random.bytes(RECORD_SIZE_BYTES - len(encoded))
        found.append(Draft(Partition(EXPERIENCES, number % PARTITIONS), id, encoded, value))
    return found


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Wall seconds and CPU seconds of this process."""
    spent: list[float] = []
    wall, cpu = time.perf_counter(), time.process_time()
    yield spent
    spent += [time.perf_counter() - wall, time.process_time() - cpu]


async def log_cost(settings: KafkaSettings, drafts: list[Draft], batch: int, in_flight: int) -> tuple[float, float]:
    """Seconds until every append is acknowledged: wall, CPU."""
    clock = SystemClock()
    log = await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))
    warm = make_drafts(999, PARTITIONS)
    await log.append(warm)
    waiting = iter([drafts[start : start + batch] for start in range(0, len(drafts), batch)])

    async def produce() -> None:
        for part in waiting:
            await log.append(part)

    with stopwatch() as spent:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(produce())
    await log.close()
    return spent[0], spent[1]


async def aiokafka_cost(settings: KafkaSettings, drafts: list[Draft]) -> tuple[float, float]:
    """The same by `send`, with the head as the only header."""
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap,
        enable_idempotence=True,
        acks="all",
        compression_type="zstd",
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_SIZE_BYTES,
        max_request_size=6 << 20,
    )
    await producer.start()
    topic = settings.prefix + EXPERIENCES
    for number in range(PARTITIONS):
        await producer.send_and_wait(topic, b"warm", partition=number)
    with stopwatch() as spent:
        futures = [
            await producer.send(
                topic, draft.value, partition=draft.partition.number, headers=[("rftd-head", draft.head)]
            )
            for draft in drafts
        ]
        await asyncio.gather(*futures)
    await producer.stop()
    return spent[0], spent[1]


def confluent_cost(settings: KafkaSettings, drafts: list[Draft]) -> tuple[float, float]:
    """The same by librdkafka."""
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "zstd",
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_SIZE_BYTES,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    topic = settings.prefix + EXPERIENCES
    done = [0]

    def delivered(error: object, _message: object) -> None:
        assert error is None
        done[0] += 1

    producer.produce(topic, b"warm", partition=0)
    producer.flush()
    with stopwatch() as spent:
        for draft in drafts:
            producer.produce(
                topic,
                draft.value,
                partition=draft.partition.number,
                headers=[("rftd-head", draft.head)],
                on_delivery=delivered,
            )
            producer.poll(0)
        producer.flush()
    assert done[0] == len(drafts)
    return spent[0], spent[1]


@contextmanager
def a_broker(bootstrap: str | None) -> Iterator[str]:
    """The given one, or one that lives as long as the block."""
    if bootstrap:
        yield bootstrap
        return
    with TemporaryDirectory(prefix="rftd-bench-") as folder:
        broker = KafkaBroker(Path(folder) / "kafka")
        broker.start()
        try:
            yield broker.bootstrap
        finally:
            broker.kill()


def main_with(measure_it: object) -> None:
    """Parses the command line, measures, prints JSON."""
    given = read_options(__doc__, bootstrap=str, events=40_000)
    assert callable(measure_it)
    with a_broker(given.bootstrap) as bootstrap:
        tell(measure_it(bootstrap, events=given.events))


if __name__ == "__main__":
    main_with(measure)
