"""What a run's remembered heads cost when it is taken up on a real Kafka, by the number of its kept checkpoints.

Each checkpoint remembers a head of every partition of truth; between two of them lie records of twelve partitions. The
newest heads are compared before the run goes on, the older ones beside it, once in a daemon's life. The reference in
the same run is a comparison checkpoint by checkpoint, of the first ones.
Run: python -P tests/bench/taken_up.py --events 1000000 [--bootstrap HOST:PORT] (prints JSON). The bar: 2 s before it
goes on.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.events.experience import RolloutFailed
from rftd.streams.events.experiment import ExperimentWarned, HeadRef
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.kafka.topics import delete_topics
from rftd.streams.log.chain import Heads
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft
from rftd.streams.log.lost_records import Witness, comparable, losses_among, newest_of
from rftd.streams.log.topics import EXPERIENCES, TOPICS, Partition

sys.path.insert(0, str(Path(__file__).parent))
from kafka_produce import main_with

KEPT = (58, 198, 2_000)
RECORDS = 3
"""The records of each partition of experiences between two checkpoints."""
TEXT_SIZE_BYTES = 1_000
COMPARED = 40
"""The checkpoints of the reference."""


class Taken(msgspec.Struct):
    """Processor seconds of this process."""

    checkpoints: int
    heads: int
    newest_heads: int
    before_it_goes_on_s: float
    beside_it_s: float
    each_checkpoint_by_itself_s: float
    """The reference, for as many checkpoints."""


async def _spent(work: Callable[[], Awaitable[object]]) -> float:
    before_s = time.process_time()
    await work()
    return time.process_time() - before_s


async def _written(log: KafkaLog, count: int) -> list[Witness]:
    """A log with that many checkpoints, and what they remember."""
    clock = SystemClock()
    ids = SystemIds(clock)
    experiment = ids.new()
    writer = Writer(source="bench", clock=clock, ids=ids)
    partitions = [Partition(EXPERIENCES, number) for number in range(TOPICS[EXPERIENCES].partitions)]
    heads: Heads = {}
    witnesses = []
    for number in range(count):
        drafts: list[Draft] = [writer.draft(ExperimentWarned(text="x" * TEXT_SIZE_BYTES), experiment=experiment)]
        for partition in partitions:
            for _ in range(RECORDS):
                failed = RolloutFailed(
                    group=ids.new(), rollout=0, stage=0, lease=ids.new(), code="X", reason="x" * TEXT_SIZE_BYTES
                )
                drafts.append(writer.draft(failed, experiment=experiment, partition=partition))
        await log.append(drafts)
        heads = await log.heads()
        witnesses.append(Witness(f"checkpoint {number}", heads))
    return witnesses


async def _taken_up(bootstrap: str, count: int) -> Taken:
    settings = KafkaSettings(bootstrap=bootstrap, prefix=f"taken-{time.time_ns()}.", compression="zstd")
    clock = SystemClock()
    log = await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))
    try:
        witnesses = await _written(log, count)
    finally:
        await log.close()
    log = await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))  # it remembers nothing of what it appended
    lost = []

    async def newest() -> None:
        remembered.update(comparable(witnesses))
        first.update(newest_of(remembered))
        lost.extend(await losses_among(log, first))

    async def older() -> None:
        lost.extend(await losses_among(log, {ref: by for ref, by in remembered.items() if ref not in first}))

    async def each() -> None:
        for witness in witnesses[:COMPARED]:
            await log.check_heads(witness.heads)

    remembered: dict[HeadRef, str] = {}
    first: dict[HeadRef, str] = {}
    try:
        before_s = await _spent(newest)
        beside_s = await _spent(older)
        reference_s = await _spent(each)
        if lost or min(before_s, beside_s, reference_s) <= 0.0:
            raise RuntimeError(f"nothing was measured: {len(lost)} heads are called lost")
        return Taken(
            checkpoints=count,
            heads=len(remembered),
            newest_heads=len(first),
            before_it_goes_on_s=round(before_s, 3),
            beside_it_s=round(beside_s, 2),
            each_checkpoint_by_itself_s=round(reference_s / min(count, COMPARED) * count, 1),
        )
    finally:
        await delete_topics(settings)
        await log.close()


def measure(bootstrap: str, *, events: int) -> list[Taken]:
    """One figure for each number of checkpoints: `KEPT`, or those with fewer than `events` records."""
    return [asyncio.run(_taken_up(bootstrap, count)) for count in KEPT if count * 12 * RECORDS < events]


if __name__ == "__main__":
    main_with(measure)
