"""What metrics cost a run at full speed. Run: python -P tests/bench/metrics_windows.py [--pairs 24] [--window_s 4]

One run of fake engines, which neither think nor wait, by a real daemon and real workers. The metrics' follower and a
scrape each second are on and off in turn, a few seconds each, the two orders in turn: of a machine whose speed changes
by a tenth from one minute to the next, two runs tell little, and neighbouring windows something. Told are rollouts per
second and processor time of daemon and workers for each rollout, and the mean ratio of neighbours with its standard
error.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.scene import EXPERIMENT, Scene
from traced_runs import FAKE, GROUP_SIZE, GROUPS, cpu_s, step_of

from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views import experiments
from rftd.workers.models.tiny_model import make_tiny_model

BEGIN_STEP = 60
SETTLE_S = 0.3
"""The time after which a follower that was switched has begun, or ended."""
SWITCHED = """
import sys
if "serve" in sys.orig_argv:
    import asyncio, os
    import rftd.daemon.serve.service as service
    follow = service.follow_metrics
    async def switched(*given):
        while True:
            while not os.path.exists(os.environ["METRICS_ON"]):
                await asyncio.sleep(0.05)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(follow(*given))
                while os.path.exists(os.environ["METRICS_ON"]):
                    await asyncio.sleep(0.05)
                task.cancel()
    service.follow_metrics = switched
"""
"""The daemon's `sitecustomize`: its follower follows while there is a file."""


class Look(msgspec.Struct, frozen=True):
    """The run at one moment."""

    step: int
    at_s: float
    cpu_s: float


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A few seconds of the run."""

    metrics: bool
    rollouts_per_s: float
    cpu_us_per_rollout: float


def window(scene: Scene, client: Client, name: str, switch: Path, *, metrics: bool, window_s: float) -> Window:
    """The figures of a window with metrics or without."""

    def look() -> Look:
        step = client.ask(experiments.summary, name=name).value.step
        return Look(step, time.perf_counter(), cpu_s(scene.host.pid))

    if metrics:
        switch.touch()
    else:
        switch.unlink(missing_ok=True)
    time.sleep(SETTLE_S)
    first = look()
    while (left_s := first.at_s + window_s - time.perf_counter()) > 0:
        time.sleep(min(1.0, left_s))
        if metrics:
            with urllib.request.urlopen(
                urllib.request.Request(f"{scene.host.url}/metrics", headers=scene.host.headers), timeout=30
            ) as answer:
                answer.read()
    last = look()
    rollouts = (last.step - first.step) * GROUPS * GROUP_SIZE
    if not rollouts:
        raise SystemExit("the run stands still")
    return Window(
        metrics=metrics,
        rollouts_per_s=round(rollouts / (last.at_s - first.at_s), 1),
        cpu_us_per_rollout=round(1e6 * (last.cpu_s - first.cpu_s) / rollouts, 2),
    )


def windows(pairs: int, window_s: float) -> list[Window]:
    """All windows of one run, on and off, off and on, in turn."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as site:
        switch = Path(folder) / "metrics"
        (Path(site) / "sitecustomize.py").write_text(SWITCHED)
        scene = Scene(Path(folder), environ={"PYTHONPATH": site, "METRICS_ON": str(switch)})
        with scene.host, scene.client() as client:
            make_tiny_model(scene.folder / "model", seed=1)
            name = scene.submit(EXPERIMENT, *FAKE, "buffer.total_steps=10000000")
            step_of(scene, name, BEGIN_STEP)
            found = []
            for number in range(2 * pairs):
                on = number % 4 in (1, 2)
                found.append(window(scene, client, name, switch, metrics=on, window_s=window_s))
                print(found[-1], file=sys.stderr, flush=True)
            return found


def main() -> None:
    """Prints the figures as JSON."""
    given = read_options(__doc__, pairs=24, window_s=4.0)
    found = windows(given.pairs, given.window_s)
    pairs = [(a, b) if a.metrics else (b, a) for a, b in pairwise(found)][::2]
    ratios = [on.rollouts_per_s / off.rollouts_per_s for on, off in pairs]
    more_us = [on.cpu_us_per_rollout - off.cpu_us_per_rollout for on, off in pairs]

    def error(values: list[float]) -> float:
        return statistics.stdev(values) / len(values) ** 0.5

    tell(
        {
            "windows": found,
            "throughput_ratio": round(statistics.mean(ratios), 4),
            "throughput_ratio_error": round(error(ratios), 4),
            "cpu_us_more": round(statistics.mean(more_us), 2),
            "cpu_us_more_error": round(error(more_us), 2),
            "load_average": os.getloadavg()[0],
        },
        may_be_zero=("cpu_us_more",),
    )


if __name__ == "__main__":
    main()
