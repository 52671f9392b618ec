"""What recovery takes: all is killed with -9 and started again; seconds until the first training step that is new.

The log holds 100,000 events of a run with fake engines, its real worker processes and a checkpoint every ten steps. The
reference in the same run is the bare start-up: an empty log, from the start of `rftd serve` until its workers joined.
Run: python -P tests/bench/recovery_time.py [--events 100000] [--times 12]
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, quantiles, read_options, tell
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.ops.errors import RftdError
from rftd.streams.events.registry import Event
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.log.chain import Heads
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import EXPERIMENTS, HEARTBEATS, WORKERS, Partition
from rftd.streams.sqlite.view import SqliteView

OVERRIDES = (
    "stages=[]",
    "buffer.batch_size=8",
    "buffer.total_steps=1000000",
    "explorer.eval_interval=1000000",
    "explorer.rollout_model.extra_engine_args={latency_s: 0.01}",
    "trainer.save_interval=10",
    "trainer.engine_args={step_s: 0.01}",
)
PATIENCE_S = 60.0
POLL_S = 0.01


class Watcher:
    """Reads what is new in the partitions that say where a run stands, beside the processes that write them."""

    def __init__(self, scene: Scene) -> None:
        self._folder = scene.data.log
        self._next: dict[Partition, int] = {}
        self.last = 0
        """The newest step that any generation executed, as far as `news` has read."""

    def records(self) -> int:
        """Records in the log; heartbeats do not count."""
        heads = asyncio.run(self._heads())
        return sum(mark.next_offset for partition, mark in heads.items() if partition.stream != HEARTBEATS)

    def news(self) -> list[Event]:
        """Events that were not returned before; none while nobody can read the log."""
        try:
            return asyncio.run(self._news())
        except (RftdError, OSError):
            return []

    async def _heads(self) -> Heads:
        view = await SqliteView.open(self._folder)
        try:
            return await view.heads()
        finally:
            await view.close()

    async def _news(self) -> list[Event]:
        view, events = await SqliteView.open(self._folder), list[Event]()
        try:
            for partition in sorted(each for each in await view.heads() if each.stream in (EXPERIMENTS, WORKERS)):
                while records := await view.read(partition, self._next.get(partition, 0)):
                    self._next[partition] = records[-1].offset + 1
                    events += [decode(record).event for record in records]
        finally:
            await view.close()
        self.last = max([self.last, *(event.step for event in events if isinstance(event, StepCompleted))])
        return events


def kill_everything(scene: Scene) -> int:
    """SIGKILLs the daemon and its workers in one moment; how many processes that were."""
    daemon = psutil.Process(scene.host.pid)
    processes = [daemon, *daemon.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)
    return len(processes)


def recovered(scene: Scene, watcher: Watcher) -> dict[str, float]:
    """Kills, starts, and waits for a step that was never executed before; seconds since the start, and steps."""
    processes = kill_everything(scene)
    watcher.news()
    last = watcher.last
    began_s = time.monotonic()
    scene.host.tend()
    marks: dict[str, float] = {"processes": processes, "ready_s": time.monotonic() - began_s}
    again = 0
    while True:
        for event in watcher.news():
            since_s = time.monotonic() - began_s
            if isinstance(event, WorkerStarted):
                marks[f"{event.role}_joined_s"] = since_s
            elif isinstance(event, GenerationStarted):
                marks["generation_s"] = since_s
            elif isinstance(event, StepCompleted):
                again += event.step <= last
                if event.step > last:
                    return marks | {"first_new_step_s": since_s, "steps_again": again}
        assert time.monotonic() - began_s < PATIENCE_S, f"no step after {last}: {marks}"
        time.sleep(POLL_S)


def started(folder: Path) -> float:
    """Seconds from the start of `rftd serve` on an empty log until both workers of a first experiment joined."""
    folder.mkdir()
    scene = Scene(folder)
    began_s = time.monotonic()
    with scene.host:
        scene.submit(EXPERIMENT, *OVERRIDES)
        watcher, joined = Watcher(scene), set[str]()
        while len(joined) < 2:
            joined |= {event.role for event in watcher.news() if isinstance(event, WorkerStarted)}
            assert time.monotonic() - began_s < PATIENCE_S, joined
            time.sleep(POLL_S)
        joined_s = time.monotonic() - began_s
        kill_everything(scene)
    return joined_s


def trained_on(scene: Scene, watcher: Watcher, steps: int) -> None:
    """Waits until so many more new steps are done, so that the next kill comes at another distance to a checkpoint."""
    watcher.news()
    goal, deadline_s = watcher.last + steps, time.monotonic() + PATIENCE_S
    while watcher.last < goal:
        scene.host.tend()
        assert time.monotonic() < deadline_s, f"no step {goal}: {watcher.last}"
        time.sleep(0.2)
        watcher.news()


def grown(scene: Scene, events: int) -> int:
    """Runs an experiment until the log holds so many events; how many there are then."""
    scene.submit(EXPERIMENT, *OVERRIDES)
    watcher = Watcher(scene)
    while (records := watcher.records()) < events:
        scene.host.tend()
        time.sleep(1.0)
    return records


def main() -> None:
    chosen = read_options(__doc__, events=100_000, times=12)
    with tempfile.TemporaryDirectory(prefix="rftd-") as folder:
        (Path(folder) / "long").mkdir()
        scene = Scene(Path(folder) / "long")
        with scene.host:
            began_s = time.monotonic()
            records = grown(scene, chosen.events)
            grown_s = time.monotonic() - began_s
            watcher, recoveries, bare = Watcher(scene), list[dict[str, float]](), list[float]()
            chance = random.Random(0)
            for number in range(chosen.times):
                recoveries.append(recovered(scene, watcher))
                kill_everything(scene)  # so that the reference has the machine for itself
                bare.append(started(Path(folder) / f"bare{number}"))
                trained_on(scene, watcher, chance.randint(10, 29))
            records_at_end = watcher.records()
        report = scene.verified()
    bare_s = statistics.median(bare)
    figures = {
        "events": records,
        "events_at_the_end": records_at_end,
        "grown_in_s": round(grown_s, 1),
        "times": chosen.times,
        "bare_start_up_s": quantiles(bare, 0.5, 0.95),
        "first_new_step_s": quantiles([each["first_new_step_s"] for each in recoveries], 0.5, 0.95),
        "above_start_up_s": quantiles([each["first_new_step_s"] - bare_s for each in recoveries], 0.5, 0.95),
        "ratio": round(statistics.median(each["first_new_step_s"] for each in recoveries) / bare_s, 2),
        "median_of": {
            key: median_of((each[key] for each in recoveries if key in each), 2)
            for key in ("ready_s", "explorer_joined_s", "trainer_joined_s", "generation_s", "steps_again", "processes")
        },
        "findings": [str(finding) for finding in report.findings],
    }
    tell(figures)


if __name__ == "__main__":
    main()
