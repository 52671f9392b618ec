"""Explorers that join and leave all the time against a set that stays, by the real daemon and its processes; JSON.

python -P tests/bench/elastic.py [--seconds 300] [--every 2] [--explorers 8] [--slots 16] [--median 0.5]

`rftd serve --workers external` and so many `rftd worker explorer`, each with `--slots` rollouts at once that only take
time, so that explorers set the pace. In the second run, every 2 seconds one more is started and the oldest is sent
SIGTERM: it takes no more, ends what it has and leaves. What it costs is their start and their draining.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import note, read_options, tell
from synthetic.daemon.scene import Scene
from timed_run import ASYNC, TEXT

from rftd.streams.events.step import StepCompleted
from rftd.streams.events.worker import WorkerStarted, WorkerStopped
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.sqlite.view import SqliteView

BAR = 0.9
BATCH, GROUP = 64, 4
WARM_UP_S = 5.0


class Crew:
    """Explorers, the oldest first."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._numbers = itertools.count()
        self.working: deque[subprocess.Popen[bytes]] = deque()
        self._leaving: list[subprocess.Popen[bytes]] = []

    def join(self, role: str = "explorer") -> subprocess.Popen[bytes]:
        """One more."""
        name = f"{role}{next(self._numbers)}"
        process = self._scene.spawn(name, "worker", role, "--log", f"unix:{self._scene.data.socket}")
        if role == "explorer":
            self.working.append(process)
        return process

    def leave(self) -> None:
        """The oldest is asked to."""
        process = self.working.popleft()
        process.terminate()
        self._leaving.append(process)

    def end(self) -> None:
        """All of them are asked to, and waited for."""
        while self.working:
            self.leave()
        for process in self._leaving:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def measured(chosen: argparse.Namespace, *, changing: bool) -> dict[str, object]:
    """One run; experiences trained per second after the warm-up."""
    with tempfile.TemporaryDirectory(prefix="rftd-") as name:
        scene = Scene(Path(name), "--workers", "external")
        with scene.host:
            run = scene.submit(
                TEXT,
                f"algorithm.repeat_times={GROUP}",
                f"buffer.batch_size={BATCH // GROUP}",
                "buffer.total_steps=1000000",
                f"explorer.runner_per_model={chosen.slots}",
                f"explorer.rollout_model.extra_engine_args={{latency_s: {chosen.median}, latency_sigma: 0.4}}",
                "algorithm.sample_strategy_args={max_staleness: 64}",
                *ASYNC[:1],
                "explorer.max_inflight_batches=16",
            )
            crew = Crew(scene)
            trainer = crew.join("trainer")
            for _ in range(chosen.explorers):
                crew.join()
            scene.until_step(run, 3)
            time.sleep(WARM_UP_S)
            began_ns, end_s = time.time_ns(), time.monotonic() + chosen.seconds
            changes = 0
            while time.monotonic() < end_s:
                time.sleep(max(0.0, min(chosen.every, end_s - time.monotonic())))
                if changing:
                    crew.join()
                    crew.leave()
                    changes += 1
            ended_ns = time.time_ns()
            crew.end()
            trainer.terminate()
            trainer.wait(timeout=30)
        report = scene.verified()
        steps, joined, left = asyncio.run(counted(scene.data.log, began_ns, ended_ns))
    return {
        "throughput_per_s": round(steps * BATCH * 1e9 / (ended_ns - began_ns), 2),
        "steps": steps,
        "changes": changes,
        "joined": joined,
        "left_in_order": left,
        "findings": [str(finding) for finding in report.findings],
    }


async def counted(log: Path, began_ns: int, ended_ns: int) -> tuple[int, int, int]:
    """Steps completed between the two times; workers that joined, and that left in good order, in all."""
    steps = joined = left = 0
    view = await SqliteView.open(log)
    try:
        for partition in await view.heads():
            if partition.stream not in (topics.EXPERIMENTS, topics.WORKERS):
                continue
            position = 0
            while records := await view.read(partition, position):
                position = records[-1].offset + 1
                for decoded in map(decode, records):
                    steps += isinstance(decoded.event, StepCompleted) and began_ns <= decoded.head.time_ns <= ended_ns
                    joined += isinstance(decoded.event, WorkerStarted)
                    left += isinstance(decoded.event, WorkerStopped)
    finally:
        await view.close()
    return steps, joined, left


def main() -> None:
    chosen = read_options(
        __doc__, seconds=300.0, every=(2.0, "seconds"), explorers=8, slots=16, median=(0.5, "seconds of a rollout")
    )
    fixed = measured(chosen, changing=False)
    note({"fixed": fixed})
    changing = measured(chosen, changing=True)
    ratio = changing["throughput_per_s"] / fixed["throughput_per_s"]  # type: ignore[operator]
    tell({"ratio": round(ratio, 3), "bar": BAR, "fixed": fixed, "changing": changing})


if __name__ == "__main__":
    main()
