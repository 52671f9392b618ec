"""Durable appends of incompressible 2 KB events in batches of 64, beside a raw write+fdatasync loop of the same bytes.

`python -P tests/bench/log_append.py` prints one JSON object.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from uuid import UUID

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from figures import tell

from rftd.streams.backends.sqlite.log import SqliteLog
from rftd.streams.envelope import Draft
from rftd.streams.topics import EXPERIENCES, Partition

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
    steal_percent: float


def measure(
    folder: Path, *, pairs: int = 3, events: int = 64_000, batch: int = 64, in_flight: int = 8, derived: bool = False
) -> Figures:
    """Interleaved pairs of (log, raw loop); `derived` takes random ids, as derived ones are, not time-ordered ones."""
    before = cpu_ticks()
    log_rates: list[float] = []
    raw_rates: list[float] = []
    for pair in range(pairs):
        batches = make_batches(pair, events, batch, derived)
        raw_rates.append(raw_rate(folder / f"raw-{pair}", batches))
        log_rates.append(asyncio.run(log_rate(folder / f"log-{pair}", batches, in_flight)))
    rate, raw = median(log_rates), median(raw_rates)
    return Figures(
        events_per_s=round(rate),
        raw_events_per_s=round(raw),
        ratio_to_raw=round(median(a / b for a, b in zip(log_rates, raw_rates, strict=True)), 3),
        pairs=pairs,
        events=events,
        batch=batch,
        in_flight=in_flight,
        steal_percent=steal_percent(before, cpu_ticks()),
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


def cpu_ticks() -> list[int]:
    """The machine's counters: user, nice, system, idle, iowait, irq, softirq, steal."""
    return [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def steal_percent(before: list[int], after: list[int]) -> float:
    """The share of time that the host gave to others."""
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return round(100 * spent[7] / max(1, sum(spent)), 2)


if __name__ == "__main__":
    with TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        tell(measure(Path(scratch)))
