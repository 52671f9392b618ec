"""What `rftd rebuild` takes for 10^6 events: seconds and the most memory, against a log of a quarter of the size.

The logs are a run's events as its roles write them (8 experiences a step), in the embedded log. The reference in the
same run is a loop that only reads and decodes every record. Run: python -P tests/bench/rebuild_million.py [EVENTS]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import tell
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops import limits
from rftd.streams.log.codec import decode
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.view import SqliteView

TIMES = 3


async def written(folder: Path, events: int) -> int:
    """A log of so many events or a few more in `folder`; how many there are."""
    recorder, count = Recorder(), 0
    run = SyntheticRun(recorder, name="million", steps=events)
    log = await SqliteLog.open(folder)

    async def flush(least: int = 1) -> int:
        flushed = len(recorder.drafts) if len(recorder.drafts) >= least else 0
        for first in range(0, flushed, limits.GROUP_COMMIT_RECORDS):
            await log.append(recorder.drafts[first : first + limits.GROUP_COMMIT_RECORDS])
        if flushed:
            recorder.drafts.clear()
            recorder.records.clear()
        return flushed

    try:
        run.begin()
        run.warm_up()
        while count + len(recorder.drafts) < events:
            run.explore()
            run.explore()
            run.train()
            count += await flush(limits.GROUP_COMMIT_RECORDS)
        run.finish()
        return count + await flush()
    finally:
        await log.close()


async def decoded_s(folder: Path) -> float:
    """Seconds to read and decode every record of a log."""
    view, began_s = await SqliteView.open(folder), time.monotonic()
    try:
        for partition in await view.heads():
            offset = 0
            while records := await view.read(partition, offset):
                offset = records[-1].offset + 1
                for record in records:
                    decode(record)
    finally:
        await view.close()
    return time.monotonic() - began_s


def rebuilt(data: Path) -> tuple[float, float, float]:
    """Seconds, CPU seconds and most resident MiB of one `rftd rebuild`, in a process of its own."""
    began_s = time.monotonic()
    command = [sys.executable, "-P", "-m", "rftd.daemon", "rebuild", "--data", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, status
    return time.monotonic() - began_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def measured(events: int) -> dict[str, float]:
    """Medians over the repetitions, each beside its reference."""
    with tempfile.TemporaryDirectory(prefix="rftd-") as folder:
        data = Path(folder)
        count = asyncio.run(written(data / "log", events))
        size = (data / "log" / "log.db").stat().st_size
        pairs = [(*rebuilt(data), asyncio.run(decoded_s(data / "log"))) for _ in range(TIMES)]
        walls, cpus, peaks, bares = (sorted(each) for each in zip(*pairs, strict=True))
        middle = TIMES // 2
        return {
            "events": count,
            "log_mib": round(size / 2**20),
            "tables_mib": round((data / "state.db").stat().st_size / 2**20),
            "rebuild_s": round(walls[middle], 1),
            "slowest_s": round(walls[-1], 1),
            "cpu_s": round(cpus[middle], 1),
            "events_per_s": round(count / walls[middle]),
            "peak_mib": round(peaks[-1]),
            "read_and_decode_s": round(bares[middle], 1),
            "ratio": round(walls[middle] / bares[middle], 2),
        }


def main(events: int) -> None:
    quarter, whole = measured(events // 4), measured(events)
    growth_mib = whole["peak_mib"] - quarter["peak_mib"]
    tell({"quarter": quarter, "whole": whole, "peak_growth_mib": growth_mib})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
