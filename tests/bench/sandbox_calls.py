"""What a sandbox costs per call: a reward of one function in the worker, and in a process of its own; prints JSON.

python -P tests/bench/sandbox_calls.py [--calls 60]

Calls of each kind follow one another in turns, so that all have the same machine. The yardstick is what any process of
Python costs: `python -I -c pass`, started and awaited without a sandbox. A source text in the worker is measured
against the same function in a package, on the same thread.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, median_ratio, quantiles, tell

from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.reward import Reward
from rftd.workers.workflows.rewards.scorer import Scorer, open_scorer
from rftd.workers.workflows.sandbox.processes import ProcessSandbox
from rftd.workers.workflows.sandbox.run_folder import rollout_folder
from rftd.workers.workflows.sandbox.sandbox import SandboxCommand

TEXT = "def short(response, truth):\n    return {'right': float(truth in response), 'length': -0.01 * len(response)}\n"
TASK = Task(taskset="t", row=0, epoch=0, prompt="2+2?", messages=(), truth="4", workflow="simple_workflow")
IN_WORKER = 200
"""Calls in the worker that are timed together."""


def short(response: str, truth: str, task: Any) -> dict[str, float]:
    """The function of the source text, as a package would have it."""
    return {"right": float(truth in response), "length": -0.01 * len(response)}


async def sandboxed(isolation: str) -> None:
    """Runs Python that does nothing."""
    async with rollout_folder() as folder:
        report = await ProcessSandbox(isolation).run(
            SandboxCommand(words=(sys.executable, "-I", "-c", "pass"), folder=folder)
        )
        assert report.exit == 0, report


async def started() -> None:
    """Starts Python that does nothing, without a sandbox."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", "pass")
    assert await process.wait() == 0


async def seconds_of(call: Callable[[], Awaitable[object]], calls: int = 1) -> float:
    """Seconds of one call, as the mean of several."""
    began_s = time.perf_counter()
    for _ in range(calls):
        await call()
    return (time.perf_counter() - began_s) / calls


async def turns(
    kinds: dict[str, Callable[[], Awaitable[object]]], rounds: int, repeated: int = 1
) -> dict[str, list[float]]:
    """Seconds of a call of each kind, round by round, without two first rounds: they read files from the disk."""
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 2):
        for kind, call in list(kinds.items())[:: 1 if number % 2 else -1]:
            seconds = await seconds_of(call, repeated)
            if number > 1:
                taken[kind].append(seconds)
    return taken


async def measure(calls: int) -> dict[str, Any]:
    """All kinds in turns."""
    sources = {"mine.py": TEXT}
    confined = open_scorer("mine.py:short", sources=sources, confined=True)
    source = open_scorer("mine.py:short", sources=sources)
    package = Scorer("short", cast(Reward, SimpleNamespace(score=short)), on_thread=True)
    kinds: dict[str, Callable[[], Awaitable[object]]] = {
        "confined": lambda: confined.score("4", TASK),
        "namespaces": lambda: sandboxed("namespaces"),
        "process": lambda: sandboxed("process"),
        "python": started,
    }
    processes = await turns(kinds, calls)
    # Apart from processes, whose starts leave cold caches to whatever follows.
    worker = await turns(
        {"package": lambda: package.score("4", TASK), "source": lambda: source.score("4", TASK)}, 40, repeated=IN_WORKER
    )
    return {
        "calls": calls,
        "confined_ms": median_of((1000 * s for s in processes["confined"]), 1),
        "confined": quantiles([1000 * s for s in processes["confined"]], 0.5, 0.95, digits=1),
        "namespaces_ms": median_of((1000 * s for s in processes["namespaces"]), 1),
        "process_ms": median_of((1000 * s for s in processes["process"]), 1),
        "python_ms": median_of((1000 * s for s in processes["python"]), 1),
        "in_worker_us": median_of((1e6 * s for s in worker["source"]), 1),
        "ratio_source_to_package": median_ratio(worker["source"], worker["package"], 3),
        "ratio_namespaces_to_python": median_ratio(processes["namespaces"], processes["python"]),
        "ratio_confined_to_python": median_ratio(processes["confined"], processes["python"]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=60)
    tell(asyncio.run(measure(parser.parse_args().calls)))
