"""What tracing and metrics cost a run. Run: python -P tests/bench/traced_runs.py [--ratio 0.01] [--pairs 5]

The same run of fake engines, which neither think nor wait, by a real daemon and real workers: in turn with and without.
With: `--traces` to a receiver that takes everything, the metrics' follower, and a scrape each second. Without: neither
option, follower nor scrape. Told are rollouts per second, processor time of daemon and workers for each thousand of
them, and the median of the ratios of the pairs. On a busy machine the processor time says more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))

from figures import tell
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.servers.otlp_receiver import OtlpReceiver, otlp_receiver

STEPS = 90
FIRST = 10
GROUPS, GROUP_SIZE = 16, 8
FAST = (
    "stages=[]",
    f"buffer.total_steps={STEPS}",
    f"buffer.batch_size={GROUPS}",
    f"algorithm.repeat_times={GROUP_SIZE}",
    "explorer.eval_interval=1000",
    "explorer.runner_per_model=64",
    "explorer.rollout_model.extra_engine_args.latency_s=0.0",
    "trainer.engine_args.step_s=0.0",
    "trainer.save_interval=1000",
)
WITHOUT = """
import sys
if "serve" in sys.orig_argv:
    import asyncio
    import rftd.daemon.service as service
    async def idle(*_):
        await asyncio.Event().wait()
    service.follow_metrics = idle
"""
"""The daemon's `sitecustomize`: it has a follower of metrics that follows nothing."""


class Figures(msgspec.Struct, kw_only=True):
    """One run, between two of its steps."""

    rollouts_per_s: float
    cpu_ms_per_1000_rollouts: float


def cpu_s(pid: int) -> float:
    """The processor time of the daemon and what it started."""
    daemon = psutil.Process(pid)
    total = 0.0
    for process in (daemon, *daemon.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue
        total += used.user + used.system
    return total


@contextmanager
def scraping(scene: Scene) -> Iterator[None]:
    """A scrape each second, while the block runs."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(1.0):
            with urllib.request.urlopen(f"{scene.host.url}/metrics", timeout=30) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measured(scene: Scene) -> Figures:
    """The figures of a run that the scene's daemon is given."""
    name = scene.submit(EXPERIMENT, *FAST)
    first = scene.until_step(name, FIRST).experiment.summary.step
    began_s, began_cpu_s = time.perf_counter(), cpu_s(scene.host.pid)
    last = scene.until_step(name, STEPS - FIRST).experiment.summary.step
    spent_s, spent_cpu_s = time.perf_counter() - began_s, cpu_s(scene.host.pid) - began_cpu_s
    rollouts = (last - first) * GROUPS * GROUP_SIZE
    return Figures(
        rollouts_per_s=round(rollouts / spent_s, 1), cpu_ms_per_1000_rollouts=round(1e6 * spent_cpu_s / rollouts, 2)
    )


def run_with(receiver: OtlpReceiver, ratio: float) -> Figures:
    """A traced run, with metrics that somebody asks for."""
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), "--traces", receiver.url, "--trace-ratio", str(ratio))
        with scene.host, scraping(scene):
            return measured(scene)


def run_without() -> Figures:
    """A run that nobody watches."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as site:
        (Path(site) / "sitecustomize.py").write_text(WITHOUT)
        scene = Scene(Path(folder), environ={"PYTHONPATH": site})
        with scene.host:
            return measured(scene)


def main() -> None:
    """Prints the figures as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--ratio", type=float, default=0.01)
    given = options.parse_args()
    on, off = list[Figures](), list[Figures]()
    with otlp_receiver() as receiver:
        # Taken without a look: the time that a receiver needs is no cost of ours.
        receiver.take = receiver.bodies.append  # type: ignore[method-assign]
        for number in range(given.pairs):
            # Each begins every other pair: what a machine does meanwhile falls on both.
            for traced in (True, False) if number % 2 else (False, True):
                (on if traced else off).append(run_with(receiver, given.ratio) if traced else run_without())
        batches = len(receiver.bodies)
    pairs = list(zip(on, off, strict=True))
    tell(
        {
            "with": on,
            "without": off,
            "trace_ratio": given.ratio,
            "batches_of_spans": batches,
            "throughput_ratio": round(statistics.median(a.rollouts_per_s / b.rollouts_per_s for a, b in pairs), 4),
            "cpu_ratio": round(
                statistics.median(a.cpu_ms_per_1000_rollouts / b.cpu_ms_per_1000_rollouts for a, b in pairs), 4
            ),
            "load_average": os.getloadavg()[0],
        }
    )


if __name__ == "__main__":
    main()
