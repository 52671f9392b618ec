"""What experiences take on disk in the embedded log, and what is left of them once their payload was dropped.

`python -P tests/bench/log_size.py [EXPERIENCES]` prints one JSON object. Lengths are drawn as a model's are, log-normal
around 900 tokens; tokens are as unevenly frequent as those of a text, log-probabilities as random as they are.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import tell
from synthetic.log.scan_chain import scan_chain

from rftd.ops.clock import SystemClock
from rftd.ops.ids import NAMESPACE, SystemIds, derive
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft
from rftd.streams.log.payloads import drop_at, give_back
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.log import SqliteLog

EXPERIENCES = 20_000
BATCH = 64
AT_ONCE = 512
RUN = derive(NAMESPACE, "bench")


def drafts(count: int) -> Iterator[list[Draft]]:
    """Batches of produced experiences, in groups of eight."""
    random = np.random.default_rng(0)
    clock = SystemClock()
    writer = Writer(source="bench", clock=clock, ids=SystemIds(clock))
    lengths = random.lognormal(np.log(900), 0.7, count).clip(32, 16_000).astype(int)
    for start in range(0, count, BATCH):
        yield [
            draft(writer, random, number, int(lengths[number])) for number in range(start, min(start + BATCH, count))
        ]


def draft(writer: Writer, random: np.random.Generator, number: int, tokens: int) -> Draft:
    response = tokens - tokens // 4
    id = derive(RUN, "experience", number)
    event = ExperienceProduced(
        experience=id,
        group=derive(RUN, "group", number // 8),
        rollout=number % 8,
        stage=0,
        lease=RUN,
        tokens=Array.of(random.zipf(1.3, tokens).clip(0, 150_000), "u4"),
        prompt_tokens=tokens // 4,
        loss_mask=Array.of(np.ones(response), "u1"),
        logprobs=Array.of(-random.exponential(0.5, response), "f4"),
        spans=(Span(0, 0, 0, response),),
        reward=float(random.random()),
    )
    return writer.draft(event, experiment=RUN, key=event.group, id=id)


async def measure(folder: Path, count: int) -> dict[str, Any]:
    """Written, closed, dropped, given back."""
    size_bytes, append_s = 0, 0.0
    log = await SqliteLog.open(folder)
    for batch in drafts(count):
        size_bytes += sum(each.size_bytes for each in batch)
        began_s = time.perf_counter()
        await log.append(batch)
        append_s += time.perf_counter() - began_s
    await log.close()
    full_bytes = (folder / "log.db").stat().st_size
    log = await SqliteLog.open(folder)
    began_s = time.perf_counter()
    dropped = 0
    for partition, mark in (await log.heads()).items():
        assert partition.stream == topics.EXPERIENCES
        for start in range(0, mark.next_offset, AT_ONCE):
            places = [(partition.number, offset) for offset in range(start, min(start + AT_ONCE, mark.next_offset))]
            dropped += (await drop_at(log, places)).records
    drop_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    await give_back(log)
    give_back_s = time.perf_counter() - began_s
    thin = sum(record.thin for record in await log.read(Partition(topics.EXPERIENCES, 0), 0))
    await log.close()
    left_bytes = (folder / "log.db").stat().st_size
    seen = scan_chain(folder).records
    if not (dropped == seen == count and thin and 0 < left_bytes < full_bytes):
        raise SystemExit(f"{dropped} of {count} experiences were dropped, {seen} found, {left_bytes} bytes left")
    return {
        "experiences": count,
        "payload_bytes": size_bytes,
        "log_bytes": full_bytes,
        "log_per_payload": round(full_bytes / size_bytes, 3),
        "left_per_payload": round(left_bytes / size_bytes, 4),
        "left_bytes_per_experience": round(left_bytes / count, 1),
        "appended_per_s": round(count / append_s),
        "dropped_per_s": round(count / drop_s),
        "give_back_s": round(give_back_s, 3),
    }


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else EXPERIENCES
    with TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        tell(asyncio.run(measure(Path(scratch), wanted)))
