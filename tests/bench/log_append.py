"""Durable appends of incompressible 2 KB events in batches of 64, beside a raw write+fdatasync loop of the same bytes.

`python -P tests/bench/log_append.py` prints one JSON object.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, median_ratio, tell

from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import EXPERIENCES, Partition
from rftd.streams.sqlite.log import SqliteLog

RECORD_SIZE_BYTES = 2048
HEAD_SIZE_BYTES = 128


class Figures(msgspec.Struct):
    """Medians over the pairs."""

    events_per_s: float
    raw_events_per_s: float
    ratio_to_raw: float
    pairs: int
    events: int
    batch: int
    in_flight: int


def measure(
    folder: Path, *, pairs: int = 3, events: int = 64_000, batch: int = 64, in_flight: int = 8, derived: bool = False
) -> Figures:
    """Interleaved pairs of (log, raw loop); `derived` takes random ids, as derived ones are, not time-ordered ones."""
    log_rates: list[float] = []
    raw_rates: list[float] = []
    for pair in range(pairs):
        batches = make_batches(pair, events, batch, derived)
        raw_rates.append(raw_rate(folder / f"raw-{pair}", batches))
        log_rates.append(asyncio.run(log_rate(folder / f"log-{pair}", batches, in_flight)))
    return Figures(
        events_per_s=median_of(log_rates),
        raw_events_per_s=median_of(raw_rates),
        ratio_to_raw=median_ratio(log_rates, raw_rates, 3),
        pairs=pairs,
        events=events,
        batch=batch,
        in_flight=in_flight,
    )


def make_batches(seed: int, events: int, batch: int, derived: bool) -> list[list[Draft]]:
    """Batches of random records, spread over eight partitions."""
    random = np.random.default_rng(seed)
    found: list[list[Draft]] = []
    for start in range(0, events, batch):
        partition = Partition(EXPERIENCES, start // batch % 8)
        drafts: list[Draft] = []
        for number in range(start, min(start + batch, events)):
            data = random.bytes(RECORD_SIZE_BYTES)
            id = UUID(bytes=data[:16]) if derived else UUID(int=(1_700_000_000_000 << 80) + (number << 48))
            drafts.append(Draft(partition, id, data[:HEAD_SIZE_BYTES], data[HEAD_SIZE_BYTES:]))
        found.append(drafts)
    return found


async def log_rate(folder: Path, batches: list[list[Draft]], in_flight: int) -> float:
    """Events acknowledged per second by a fresh log."""
    log = await SqliteLog.open(folder)
    waiting = iter(batches)

    async def produce() -> None:
        for batch in waiting:
            await log.append(batch)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(produce())
    elapsed = time.perf_counter() - start
    await log.close()
    return sum(map(len, batches)) / elapsed


def raw_rate(path: Path, batches: list[list[Draft]]) -> float:
    """Events per second of one write and one fdatasync per batch."""
    bodies = [b"".join(part for draft in batch for part in (draft.head, draft.value)) for batch in batches]
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    start = time.perf_counter()
    for body in bodies:
        os.write(file, body)
        os.fdatasync(file)
    elapsed = time.perf_counter() - start
    os.close(file)
    path.unlink()
    return sum(map(len, batches)) / elapsed


if __name__ == "__main__":
    with TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        tell(measure(Path(scratch)))
