"""What tracing and metrics cost a run. Run: python -P tests/bench/traced_runs.py [--engine torch] [--what traces]

The same run by a real daemon and real workers, in turn with and without: of fake engines, which neither think nor wait,
or of the torch engines with a model of the demo's size. With: `--traces` to a receiver that takes everything, the
metrics' follower, and a scrape each second; `--what traces` and `--what metrics` leave out the other. Told are rollouts
per second, processor time of daemon and workers for each rollout, and the median of the ratios of the pairs. On a busy
machine the processor time says more. What a process uses once, to begin to trace, is outside of the window. All else
that is asked of the daemon is how far the run is, once a second.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec
import psutil

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, read_options, tell
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.torch_world import TORCH
from synthetic.servers.otlp_receiver import OtlpReceiver, otlp_receiver
from synthetic.until import PATIENCE_S, poll

from rftd.daemon.http.views import experiments
from rftd.ops.errors import NotFoundError
from rftd.ops.tracing.trace_options import RATIO
from rftd.workers.models.tiny_model import make_tiny_model

FIRST = {"fake": 100, "torch": 20}
AFTER = 150
"""Steps after the window: more than are made within the second in which nobody asks."""
GROUPS, GROUP_SIZE = 16, 8
SHAPE = (
    "stages=[]",
    f"buffer.batch_size={GROUPS}",
    f"algorithm.repeat_times={GROUP_SIZE}",
    "explorer.eval_interval=1000000",
    "trainer.save_interval=1000000",
)
FAKE = (
    *SHAPE,
    "explorer.runner_per_model=64",
    "explorer.rollout_model.extra_engine_args.latency_s=0.0",
    "trainer.engine_args.step_s=0.0",
)
OF_TORCH = (*TORCH, *SHAPE, "explorer.rollout_model.engine_num=1", "explorer.runner_per_model=256")
PROCESSES = (b"rftd-daemon", b"rftd-explorer", b"rftd-trainer")
WITHOUT = """
import sys
if "serve" in sys.orig_argv:
    import asyncio
    import rftd.daemon.serve.service as service
    async def idle(*_):
        await asyncio.Event().wait()
    service.follow_metrics = idle
"""
"""The daemon's `sitecustomize`: it has a follower of metrics that follows nothing."""


class Figures(msgspec.Struct, kw_only=True):
    """One run, between two of its steps."""

    rollouts_per_s: float
    cpu_us_per_rollout: float


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The run that is measured, and what it is measured with."""

    overrides: tuple[str, ...]
    first: int
    """The step at which the window begins."""
    last: int
    traces: bool
    metrics: bool
    ratio: float


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
            with urllib.request.urlopen(
                urllib.request.Request(f"{scene.host.url}/metrics", headers=scene.host.headers), timeout=30
            ) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def step_of(scene: Scene, name: str, least: int) -> int:
    """The step that the run is at, once it has reached `least`. It asks so seldom that it costs next to nothing."""
    deadline_s = time.monotonic() + PATIENCE_S
    with scene.client() as client:
        while time.monotonic() < deadline_s:
            with suppress(NotFoundError):  # the tables do not know it in the first moment
                step = client.ask(experiments.summary, name=name).value.step
                if step >= least:
                    return step
            time.sleep(1.0)
    raise SystemExit(f"step {least} was not reached within {PATIENCE_S:.0f} s")


def measured(scene: Scene, kind: Kind, receiver: OtlpReceiver) -> Figures:
    """The figures of a run that the scene's daemon is given; `receiver` is the one that spans go to."""
    make_tiny_model(scene.folder / "model", seed=1)
    name = scene.submit(EXPERIMENT, *kind.overrides, f"buffer.total_steps={kind.last + AFTER}")
    step_of(scene, name, kind.first)
    if kind.traces:
        # Each process imports once what it sends by: an eighth of a second.
        poll(lambda: all(any(each in body for body in receiver.bodies) for each in PROCESSES))
    first = step_of(scene, name, kind.first)
    began_s = time.perf_counter()
    began_cpu_s = cpu_s(scene.host.pid)
    last = step_of(scene, name, kind.last)
    spent_s = time.perf_counter() - began_s
    spent_cpu_s = cpu_s(scene.host.pid) - began_cpu_s
    rollouts = (last - first) * GROUPS * GROUP_SIZE
    return Figures(
        rollouts_per_s=round(rollouts / spent_s, 1), cpu_us_per_rollout=round(1e6 * spent_cpu_s / rollouts, 2)
    )


def run_with(receiver: OtlpReceiver, kind: Kind) -> Figures:
    """A run that is traced, or has metrics that somebody asks for, as its kind says."""
    receiver.bodies.clear()
    traces = ("--traces", receiver.url, "--trace-ratio", str(kind.ratio)) if kind.traces else ()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as site:
        if not kind.metrics:
            (Path(site) / "sitecustomize.py").write_text(WITHOUT)
        scene = Scene(Path(folder), *traces, environ={"PYTHONPATH": site})
        with scene.host, scraping(scene) if kind.metrics else nullcontext():
            return measured(scene, kind, receiver)


def main() -> None:
    """Prints the figures as JSON."""
    given = read_options(
        __doc__,
        pairs=5,
        ratio=RATIO,
        engine={"choices": ["fake", "torch"], "default": "fake"},
        what={"choices": ["both", "traces", "metrics"], "default": "both"},
        steps=(600, "steps in the window, or almost"),
    )
    watched = Kind(
        overrides=FAKE if given.engine == "fake" else OF_TORCH,
        first=FIRST[given.engine],
        last=FIRST[given.engine] + given.steps,
        traces=given.what != "metrics",
        metrics=given.what != "traces",
        ratio=given.ratio,
    )
    plain = msgspec.structs.replace(watched, traces=False, metrics=False)
    on, off = list[Figures](), list[Figures]()
    with otlp_receiver() as receiver:
        # Taken without a look: the time that a receiver needs is no cost of ours.
        receiver.take = receiver.bodies.append  # type: ignore[method-assign]
        for number in range(given.pairs):
            # Each begins every other pair: what a machine does meanwhile falls on both.
            for traced in (True, False) if number % 2 else (False, True):
                (on if traced else off).append(run_with(receiver, watched if traced else plain))
                print("with" if traced else "without", (on if traced else off)[-1], file=sys.stderr, flush=True)
    pairs = list(zip(on, off, strict=True))
    tell(
        {
            "what": given.what,
            "engine": given.engine,
            "with": on,
            "without": off,
            "trace_ratio": given.ratio,
            "throughput_ratio": median_of((a.rollouts_per_s / b.rollouts_per_s for a, b in pairs), 4),
            "cpu_ratio": median_of((a.cpu_us_per_rollout / b.cpu_us_per_rollout for a, b in pairs), 4),
            "cpu_us_more": median_of((a.cpu_us_per_rollout - b.cpu_us_per_rollout for a, b in pairs), 2),
            "load_average": os.getloadavg()[0],
        },
        may_be_zero=("cpu_us_more",),
    )


if __name__ == "__main__":
    main()
