"""The daemon's memory over a run at full speed: `rftd serve` with real worker processes whose engines take no time.

`python -P tests/bench/soak.py [--seconds 1800] [--records N] [--starts 3]` prints one JSON object: the daemon's
anonymous memory against the records in its log, and the slope after the warm-up. Meanwhile a client asks for the run's
page, again and again. It ends after so many seconds, or with N records. Then all is killed and started again, as often
as `--starts` says: seconds until the first step that is new. It fails if the run stood still or a bar is broken.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from recovery_time import Watcher, kill_everything, recovered
from synthetic.daemon.scene import Scene
from timed_run import TEXT

from rftd.streams.sqlite.view import SqliteView

MIB: Final = 1024 * 1024
SAMPLE_S: Final = 1.0
ASK_S: Final = 0.1
WARM_RECORDS: Final = 400_000
"""Rings and caches are full by then."""
SLOPE_BAR_BYTES: Final = 20.0
MEMORY_BAR_MIB: Final = 400
START_BAR_S: Final = 10.0
FASTEST: Final = (
    "algorithm.repeat_times=8",
    "buffer.batch_size=16",
    "buffer.total_steps=10000000",
    "explorer.runner_per_model=128",
    "explorer.rollout_model.engine_num=2",
    "trainer.engine_args={step_s: 0.0}",
    "trainer.save_interval=200",
)


class Sample(msgspec.Struct, frozen=True):
    """The daemon at one moment."""

    at_s: float
    records: int
    anonymous_mib: float


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    seconds: float
    records: int
    records_per_s: float
    most_mib: float
    slope_bytes_per_record: float
    """After the first `WARM_RECORDS` records, by least squares."""
    starts: list[dict[str, float]]
    """Of each start after everything was killed: seconds since it began."""
    samples: list[Sample]


def soak(seconds: float, most_records: int, starts: int) -> Soak:
    """Runs for so long. Raises AssertionError if too little happened to say anything."""
    with tempfile.TemporaryDirectory(prefix="rftd-") as name:
        scene = Scene(Path(name))
        with scene.host:
            run = scene.submit(TEXT, *FASTEST)
            scene.until_step(run, 1)
            done = threading.Event()
            client = threading.Thread(target=_ask, args=(scene, run, done))
            client.start()
            try:
                samples = asyncio.run(watch(scene, seconds, most_records))
            finally:
                done.set()
                client.join()
            watcher = Watcher(scene)
            again = [_rounded(recovered(scene, watcher)) for _ in range(starts)]
            if starts:
                kill_everything(scene)
    return _judged(samples, again)


def _rounded(marks: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in marks.items()}


def _ask(scene: Scene, run: str, done: threading.Event) -> None:
    """Looks at the run as people do, but more often."""
    while not done.wait(ASK_S):
        scene.page(run)


async def watch(scene: Scene, seconds: float, most_records: int) -> list[Sample]:
    """The daemon once a second, for so long or until the log has so many records."""
    view, began_s = await SqliteView.open(scene.data.log), time.monotonic()
    samples: list[Sample] = []
    try:
        while (at_s := time.monotonic() - began_s + SAMPLE_S) < seconds:
            await asyncio.sleep(SAMPLE_S)
            records = sum(mark.next_offset for mark in (await view.heads()).values())
            samples.append(Sample(round(at_s, 1), records, round(anonymous_bytes(scene.host.pid) / MIB, 2)))
            if records >= most_records:
                break
    finally:
        await view.close()
    return samples


def anonymous_bytes(pid: int) -> int:
    """A process's own memory: what no file backs."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Anonymous":
            return int(rest.split()[0]) * 1024
    raise AssertionError(f"no anonymous memory of {pid}")


def _judged(samples: list[Sample], starts: list[dict[str, float]]) -> Soak:
    warm = [each for each in samples if each.records >= WARM_RECORDS]
    assert len(warm) > 10 and warm[-1].records > 1.2 * WARM_RECORDS, f"too few records: {samples[-1:]}"
    slope = np.polyfit([each.records for each in warm], [each.anonymous_mib * MIB for each in warm], 1)[0]
    last = samples[-1]
    return Soak(
        seconds=last.at_s,
        records=last.records,
        records_per_s=round(last.records / last.at_s, 1),
        most_mib=max(each.anonymous_mib for each in samples),
        slope_bytes_per_record=round(float(slope), 1),
        starts=starts,
        samples=samples[:: max(1, len(samples) // 120)],
    )


def main() -> int:
    """Prints what was measured; 1 if a bar is broken."""
    chosen = read_options(__doc__, seconds=1800.0, records=1 << 60, starts=3)
    result = soak(chosen.seconds, chosen.records, chosen.starts)
    tell(result)
    late = [start for start in result.starts if start["first_new_step_s"] > START_BAR_S]
    return int(result.slope_bytes_per_record > SLOPE_BAR_BYTES or result.most_mib > MEMORY_BAR_MIB or bool(late))


if __name__ == "__main__":
    sys.exit(main())
