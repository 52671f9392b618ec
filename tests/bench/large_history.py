"""What a history costs when it is long: the fold of each event, what is kept of it, its snapshot, and the event loop.

`python -P tests/bench/large_history.py [EVENTS] [PICTURE]` (10^6 by default) prints one JSON object and draws PICTURE
(docs/large_history.png). Events are synthetic and go straight into the folds: a log of that length is not written. The
fold of 10^8 experiences is that of the newest, with intervals that cover the others. It fails if a bar is broken.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from operator import itemgetter
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import numpy as np

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import tell
from soak import MIB, anonymous_bytes
from synthetic.log.long_history import EXPERIMENT, LongHistory

from rftd.daemon.cli.verbs.serve import SWITCH_INTERVAL_S
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.ops.cycles import tune_collector
from rftd.ops.metrics import Metrics
from rftd.streams.folds.pieces import pieces_of
from rftd.streams.folds.run_state import RunParts, RunState
from rftd.streams.folds.snapshot import Snapshot, pack, unpack
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.spec.spec import ExperimentSpec

PER_DECADE: Final = 4
STEPS_AT_ONCE: Final = 5
HISTORY: Final = 10**8
UNDER_WAY: Final = 10**5
EXPONENT_BAR: Final = 1.05
SNAPSHOT_BAR_MIB: Final = 20
LOOP_BAR_MS: Final = 20.0
MEMORY_BAR_MIB: Final = 300
KEPT_BAR_BYTES: Final = 0.2


class Point(msgspec.Struct, frozen=True):
    """A history of so many things, and the processor time that all of them took."""

    count: int
    seconds: float


class Large(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    events: list[Point]
    events_exponent: float
    experiences_exponent: float
    experiments: list[Point]
    experiments_exponent: float
    kept_bytes_per_experience: float
    """The largest snapshot of the history that was folded (windows and what is under way), over 10^8."""
    memory_mib: float
    """Of this process with a history of 10^8 and 10^5 under way."""
    snapshot_mib: float
    pack_ms: float
    piece_ms: float
    """Of this, processor time of the longest piece: for so long Python's lock is kept."""
    loop_ms: float
    """Longest time for which the loop did not turn while another thread packed; the best of three, for other processes
    stop both threads."""
    unpack_ms: float
    published_step_ms: float
    """Folding and asking about one published step, after 10^8 / 64 versions."""


def folded(most: int) -> tuple[list[Point], list[int], int]:
    """Totals at each size, the experiences there, and the largest snapshot."""
    history, state = LongHistory(), RunState(EXPERIMENT)
    points, experiences, sizes = list[Point](), list[int](), list[int]()
    total_s, wanted = 0.0, 1000.0
    while history.events < most:
        some = list(history.steps(STEPS_AT_ONCE))
        began_s = time.process_time()
        for decoded in some:
            state.apply(decoded)
        total_s += time.process_time() - began_s
        if history.events >= wanted:
            points.append(Point(history.events, round(total_s, 6)))
            experiences.append(history.experiences)
            sizes.append(len(pack(snapshot_of(state))))
            wanted *= 10 ** (1 / PER_DECADE)
    return points, experiences, max(sizes)


def experiments(most: int) -> list[Point]:
    """The metrics' names and states of so many experiments."""
    points, total_s, feed = list[Point](), 0.0, MetricsFeed(Metrics(version="bench"))
    spec = ExperimentSpec(project="p", name="same", job_dir="/jobs", stages=(), config={})
    spine = Spine(spec=spec, status=Status.COMPLETED)
    for number in range(1, most + 1):
        began_s = time.process_time()
        feed.remember(UUID(int=number << 64 | number), spine)
        total_s += time.process_time() - began_s
        if number in (most // 100, most // 30, most // 10, most // 3, most):
            points.append(Point(number, round(total_s, 6)))
    return points


async def beside_the_loop(snapshot: Snapshot[RunParts]) -> tuple[bytes, float, float]:
    """The file, how long packing it took, and the longest time for which the loop stood still, in milliseconds."""
    longest_s, done = 0.0, asyncio.Event()

    async def turn() -> None:
        nonlocal longest_s
        last_s = time.perf_counter()
        while not done.is_set():
            await asyncio.sleep(0)
            now_s = time.perf_counter()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(turn())
        await asyncio.sleep(0.05)
        longest_s, began_s = 0.0, time.perf_counter()
        data = await asyncio.to_thread(pack, snapshot)
        took_s = time.perf_counter() - began_s
        done.set()
    return data, 1e3 * took_s, 1e3 * longest_s


def longest_piece_s(state: RunState) -> float:
    """Processor time of the longest piece."""
    pieces, longest_s = pieces_of(state.parts()), 0.0
    while True:
        began_s = time.thread_time()
        if next(pieces, None) is None:
            return longest_s
        longest_s = max(longest_s, time.thread_time() - began_s)


def snapshot_of(state: RunState) -> Snapshot[RunParts]:
    return Snapshot(experiment=EXPERIMENT, marks=(), fences=(), parts=state.parts())


def exponent(points: list[Point]) -> float:
    """The slope of the logarithms: 1 if each thing costs the same."""
    counts = np.log([each.count for each in points])
    return round(float(np.polyfit(counts, np.log([each.seconds for each in points]), 1)[0]), 3)


def measure(most: int) -> Large:
    """All of it, in a process that is set up as the daemon's is."""
    tune_collector()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    history, state = LongHistory(waiting=UNDER_WAY), RunState(EXPERIMENT)
    history.skip(state, HISTORY)
    for decoded in history.steps(200):
        state.apply(decoded)
    del decoded
    gc.collect()
    step_s = min(_published(history, state) for _ in range(20))
    data, pack_ms, loop_ms = min(
        (asyncio.run(beside_the_loop(snapshot_of(state))) for _ in range(3)), key=itemgetter(2)
    )
    longest_s = longest_piece_s(state)
    began_s = time.perf_counter()
    unpack(data, Snapshot[RunParts])
    unpack_ms = 1e3 * (time.perf_counter() - began_s)
    memory = anonymous_bytes(_pid())
    del history, state
    events, counts, kept = folded(most)
    known = experiments(10_000)
    return Large(
        events=events,
        events_exponent=exponent(events),
        experiences_exponent=exponent([Point(n, each.seconds) for n, each in zip(counts, events, strict=True)]),
        experiments=known,
        experiments_exponent=exponent(known),
        kept_bytes_per_experience=round(kept / HISTORY, 5),
        memory_mib=round(memory / MIB, 1),
        snapshot_mib=round(len(data) / MIB, 2),
        pack_ms=round(pack_ms, 1),
        piece_ms=round(1e3 * longest_s, 3),
        loop_ms=round(loop_ms, 2),
        unpack_ms=round(unpack_ms, 1),
        published_step_ms=round(1e3 * step_s, 3),
    )


def _published(history: LongHistory, state: RunState) -> float:
    """Seconds for one step: its events but for the groups, and who asks for the newest weights."""
    some = list(history.steps(1))
    for decoded in some[:-4]:
        state.apply(decoded)
    began_s = time.perf_counter()
    for decoded in some[-4:]:
        state.apply(decoded)
    assert state.weights.newest(state.spine) is not None
    assert state.weights.of_version(history.version, state.spine) is not None
    assert state.weights.base() is None
    return time.perf_counter() - began_s


def _pid() -> int:
    return int(Path("/proc/self").resolve().name)


def draw(found: Large, path: Path) -> None:
    """Microseconds for each event and experiment, against how many there were before."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6))
    for points, name in ((found.events, "event"), (found.experiments, "experiment")):
        costs = [1e6 * each.seconds / each.count for each in points]
        axes.plot([each.count for each in points], costs, marker="o", label=f"per {name}")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("how many there are")
    axes.set_ylabel("processor time of each, microseconds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(events: str = "1000000", picture: str = "docs/large_history.png") -> int:
    """Prints what was measured; 1 if a bar is broken."""
    found = measure(int(float(events)))
    tell(found)
    draw(found, Path(picture))
    exponents = (found.events_exponent, found.experiences_exponent, found.experiments_exponent)
    broken = {
        "exponents": max(exponents) > EXPONENT_BAR,
        "kept": found.kept_bytes_per_experience > KEPT_BAR_BYTES,
        "memory": found.memory_mib > MEMORY_BAR_MIB,
        "snapshot": found.snapshot_mib > SNAPSHOT_BAR_MIB,
        "loop": found.loop_ms > LOOP_BAR_MS,
        "step": found.published_step_ms > 2.0,
    }
    print("broken:", ", ".join(name for name, is_so in broken.items() if is_so) or "nothing", file=sys.stderr)
    return int(any(broken.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
