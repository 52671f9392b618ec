"""Experiences of 1,024 tokens on a real Kafka: produced, durable, closed, planned; against bare aiokafka.

`python -P tests/bench/experience_path_kafka.py` starts a broker of its own and prints one JSON object. The path: an
explorer that answers at once, the daemon's planner and dispatcher on their real folds, and a trainer's announcements,
so that planning goes on. The reference, in the same run, interleaved: bare aiokafka, the same bytes and settings,
`send_batch` in one process and `getmany` in another. Latencies, from the event's creation to the plan that names it
having been read back, are taken in a second run at half of the rate.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final
from uuid import UUID

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

sys.path.insert(0, str(Path(__file__).parent))

from experience_path import GROUP, TRINITY_READ_PER_S, TRINITY_WRITTEN_PER_S, BareRates, BenchExecutor, spec_of
from experience_workers import APPENDS_IN_FLIGHT, Responses, explore, read
from figures import median_of, tell

from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.cycles import tune_collector
from rftd.ops.ids import SystemIds, derive
from rftd.ops.logs import logger
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import kafka_url, parse_kafka
from rftd.streams.kafka.topics import ensure_topics
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.role import as_refs

WARM_UP_S, MEASURED_S = 4.0, 8.0
LINGER_MS: Final = 5
BATCH_SIZE_BYTES: Final = 512 * 1024


class PathFigures(msgspec.Struct):
    """Experiences per second of the path, and milliseconds from creation to plan."""

    written_per_s: float
    planned_per_s: float
    latency_p50_ms: float
    latency_p99_ms: float
    daemon_cores: float


class Figures(msgspec.Struct):
    """Medians over the pairs."""

    written_per_s: float
    planned_per_s: float
    bare_written_per_s: float
    bare_read_per_s: float
    ratio_planned_to_bare: float
    ratio_written_to_trinity: float
    ratio_planned_to_trinity: float
    half_rate_per_s: float
    half_rate_latency_p50_ms: float
    half_rate_latency_p99_ms: float
    pairs: list[tuple[PathFigures, BareRates]]
    half_rate: list[PathFigures]


def measure(bootstrap: str, *, pairs: int) -> Figures:
    """Interleaved pairs of (the path, bare aiokafka), then the path at half of its rate."""
    measured = [(_path(bootstrap, f"x{n}.", 0.0), _bare(bootstrap, f"b{n}.")) for n in range(pairs)]
    planned = median(path.planned_per_s for path, _ in measured)
    half = [_path(bootstrap, f"h{n}.", planned / 2) for n in range(pairs)]
    written = median(path.written_per_s for path, _ in measured)
    return Figures(
        written_per_s=round(written),
        planned_per_s=round(planned),
        bare_written_per_s=median_of(bare.written_per_s for _, bare in measured),
        bare_read_per_s=median_of(bare.read_per_s for _, bare in measured),
        ratio_planned_to_bare=median_of((path.planned_per_s / bare.read_per_s for path, bare in measured), 2),
        ratio_written_to_trinity=round(written / TRINITY_WRITTEN_PER_S, 2),
        ratio_planned_to_trinity=round(planned / TRINITY_READ_PER_S, 2),
        half_rate_per_s=median_of(each.planned_per_s for each in half),
        half_rate_latency_p50_ms=median(each.latency_p50_ms for each in half),
        half_rate_latency_p99_ms=median(each.latency_p99_ms for each in half),
        pairs=measured,
        half_rate=half,
    )


def _path(bootstrap: str, prefix: str, rate_per_s: float) -> PathFigures:
    """One run in a daemon process of its own."""
    with TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        with (Path(scratch) / "daemon.log").open("wb") as said:
            url = f"kafka://{bootstrap}/?prefix={prefix}&compression=zstd"  # as the bare one has it
            command = _command("daemon", scratch, url, str(rate_per_s))
            subprocess.run(command, stdout=said, check=True, timeout=180)
        return msgspec.json.decode((Path(scratch) / "rates.json").read_bytes(), type=PathFigures)


def _bare(bootstrap: str, prefix: str) -> BareRates:
    """One run of bare aiokafka: two processes."""
    with TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        asyncio.run(ensure_topics(parse_kafka(f"kafka://{bootstrap}/?prefix={prefix}")))
        topic = prefix + topics.EXPERIENCES
        workers = [
            subprocess.Popen(_command(role, bootstrap, topic, f"{scratch}/{role}"))
            for role in ("produce-bare", "consume-bare")
        ]
        for worker in workers:
            assert worker.wait(timeout=180) == 0
        written, taken = (float(Path(f"{scratch}/{role}").read_text()) for role in ("produce-bare", "consume-bare"))
        return BareRates(round(written), round(taken))


class Latencies:
    """Milliseconds from the creation of each experience to its plan's arrival at the daemon's fold."""

    def __init__(self, apply: object, clock: SystemClock) -> None:
        self._apply = apply
        self._clock = clock
        self._created_ns: dict[UUID, int] = {}
        self.measured_ms: list[float] = []

    def take(self, decoded: Decoded) -> None:
        """Stands in the place of the fold's `apply`."""
        event = decoded.event
        if isinstance(event, ExperienceProduced):
            self._created_ns[event.experience] = decoded.head.time_ns
        elif isinstance(event, BatchPlanned):
            now_ns = self._clock.now_ns()
            for item in event.experiences:
                if (created_ns := self._created_ns.pop(item.experience, None)) is not None:
                    self.measured_ms.append((now_ns - created_ns) / 1e6)
        self._apply(decoded)  # type: ignore[operator]

    def quantile(self, share: float) -> float:
        """The quantile in milliseconds."""
        ordered = sorted(self.measured_ms)
        return round(ordered[int(share * (len(ordered) - 1))], 1) if ordered else 0.0


async def _daemon(data: Path, url: str, rate_per_s: float) -> PathFigures:
    """What `rftd serve --kafka` runs for one experiment, measured from within."""
    tune_collector()
    clock = SystemClock()
    ids = SystemIds(clock)
    settings = parse_kafka(url)
    await ensure_topics(settings)
    log = await KafkaLog.open(settings, clock=clock, ids=ids)
    executor = BenchExecutor(_command, kafka_url(settings), str(rate_per_s / GROUP))
    writer = Writer(source="bench", clock=clock, ids=ids)
    experiment = derive(ids.new(), "experiment")
    await log.append([writer.draft(life.ExperimentSubmitted(spec=spec_of(data)), experiment=experiment)])
    accepted = life.ExperimentAccepted(start=as_refs(await log.heads()))
    await log.append([writer.draft(accepted, experiment=experiment)])
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger(role="daemon"))
    latencies = Latencies(run.state.apply, clock)
    run.state.apply = latencies.take  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(run.drive())
        figures = await _watch(log, run, latencies)
        driving.cancel()
    for handle in executor.started.values():
        handle.kill()
    await log.close()
    return figures


async def _watch(log: KafkaLog, run: Run, latencies: Latencies) -> PathFigures:
    clock, spine = SystemClock(), run.state.spine
    while spine.version < 1:
        await clock.sleep(0.05)
    await clock.sleep(WARM_UP_S)
    latencies.measured_ms.clear()
    start_s, cpu_s, before = time.perf_counter(), time.process_time(), (await _written(log), spine.planned)
    await clock.sleep(MEASURED_S)
    span_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    after = (await _written(log), spine.planned)
    written, planned = ((b - a) / span_s for a, b in zip(before, after, strict=True))
    return PathFigures(
        written_per_s=round(written),
        planned_per_s=round(planned * run.state.spine.stage_spec().train_batch_size),
        latency_p50_ms=latencies.quantile(0.5),
        latency_p99_ms=latencies.quantile(0.99),
        daemon_cores=round(cpu_s / span_s, 2),
    )


async def _written(log: KafkaLog) -> int:
    heads = await log.heads()
    return sum(mark.next_offset for partition, mark in heads.items() if partition.stream == topics.EXPERIENCES)


async def produce_bare(bootstrap: str, topic: str) -> float:
    """Acknowledged experiences per second: groups of eight to one partition each, several in flight."""
    responses, group = Responses(0), derive(UUID(int=1), "group")
    encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        acks="all",
        compression_type="zstd",
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_SIZE_BYTES,
        max_request_size=6 * 1024 * 1024,
    )
    await producer.start()
    in_flight, acknowledged, partitions = asyncio.Semaphore(APPENDS_IN_FLIGHT), 0, topics.TOPICS[topics.EXPERIENCES]
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    counted_from_s = start_s + WARM_UP_S

    async def send(number: int) -> None:
        nonlocal acknowledged
        async with in_flight:
            batch = producer.create_batch()
            for rollout in range(GROUP):
                event = responses.event(group=group, rollout=rollout, stage=0, lease=group, version=0)
                batch.append(key=None, value=encode(event), timestamp=None)
            await (await producer.send_batch(batch, topic, partition=number % partitions.partitions))
            if loop.time() > counted_from_s:
                acknowledged += GROUP

    async with asyncio.TaskGroup() as tasks:
        number = 0
        while loop.time() < counted_from_s + MEASURED_S:
            async with in_flight:
                pass
            tasks.create_task(send(number))
            number += 1
            await asyncio.sleep(0)
    await producer.stop()
    return acknowledged / MEASURED_S


async def consume_bare(bootstrap: str, topic: str) -> float:
    """Experiences per second by `getmany`, not decoded."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, max_partition_fetch_bytes=4 * 1024 * 1024
    )
    await consumer.start()
    partitions = [TopicPartition(topic, number) for number in range(topics.TOPICS[topics.EXPERIENCES].partitions)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    loop = asyncio.get_running_loop()
    counted_from_s, taken = loop.time() + WARM_UP_S, 0
    while (now_s := loop.time()) < counted_from_s + MEASURED_S:
        fetched = await consumer.getmany(timeout_ms=500, max_records=1024)
        if now_s > counted_from_s:
            taken += sum(map(len, fetched.values()))
    await consumer.stop()
    return taken / MEASURED_S


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", __file__, *arguments]


def main(arguments: list[str]) -> None:
    """One role of the benchmark, or all of it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    match arguments:
        case ["daemon", data, url, rate_per_s]:
            figures = asyncio.run(_daemon(Path(data), url, float(rate_per_s)))
            (Path(data) / "rates.json").write_bytes(msgspec.json.encode(figures))
        case ["explorer", url, experiment, groups_per_s]:
            asyncio.run(explore(url, UUID(experiment), float(groups_per_s)))
        case ["trainer", url, experiment, _]:
            asyncio.run(read(url, UUID(experiment), assemble=False))
        case ["produce-bare", bootstrap, topic, path]:
            Path(path).write_text(str(asyncio.run(produce_bare(bootstrap, topic))))
        case ["consume-bare", bootstrap, topic, path]:
            Path(path).write_text(str(asyncio.run(consume_bare(bootstrap, topic))))
        case [] | [_]:
            with TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "kafka") as broker:
                result = measure(broker.bootstrap, pairs=int(arguments[0]) if arguments else 3)
            tell(result)


if __name__ == "__main__":
    main(sys.argv[1:])
