"""Processor time of a call of a reward: in the worker, and in a process of its own in a sandbox; prints JSON.

python -P tests/bench/sandbox_calls.py [--rounds 20]

Blocks of calls of each kind follow one another in turns, so that all have the same machine; ratios are the medians of
the rounds'. The yardstick is the cost of any process of Python: `python -I -c pass`, started and awaited without a
sandbox. A source text in the worker is measured against the same function in a package, on the same thread. Times of
the clock stand beside the processor's: on a busy machine they say how long a call waits.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

sys.path.insert(0, str(Path(__file__).parent))

import psutil
from figures import median_of, median_ratio, read_options, tell

from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.reward import Reward
from rftd.workers.workflows.rewards.scorer import Scorer, open_scorer
from rftd.workers.workflows.sandbox import processes as sandbox_processes
from rftd.workers.workflows.sandbox.processes import ProcessSandbox
from rftd.workers.workflows.sandbox.run_folder import rollout_folder
from rftd.workers.workflows.sandbox.sandbox import SandboxCommand

TEXT = "def short(response, truth):\n    return {'right': float(truth in response), 'length': -0.01 * len(response)}\n"
TASK = Task(taskset="t", row=0, epoch=0, prompt="2+2?", messages=(), truth="4", workflow="simple_workflow")
CALLS = 10
"""Calls of a process measured together."""
IN_WORKER = 200
"""Calls in the worker measured together."""


class Cost(NamedTuple):
    """Seconds of one call."""

    processor_s: float
    clock_s: float


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


UNWAITED = """
import signal
set_handler = signal.signal
signal.signal = lambda number, handler: None if number == signal.SIGCHLD else set_handler(number, handler)
"""
"""Before the program that forks wardens: ended wardens stay as zombies, whose processor time can be read."""


def processor_s() -> float:
    """Returns the processor seconds of this process and of all its processes, ended ones among them."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (own, *own.children(recursive=True)))


async def cost_of(call: Callable[[], Awaitable[object]], calls: int, clock: Callable[[], float]) -> Cost:
    """Returns the cost of one call, as the mean of several."""
    began_s, began_processor_s = time.perf_counter(), clock()
    for _ in range(calls):
        await call()
    return Cost((clock() - began_processor_s) / calls, (time.perf_counter() - began_s) / calls)


async def turns(
    kinds: dict[str, Callable[[], Awaitable[object]]], rounds: int, calls: int, clock: Callable[[], float]
) -> dict[str, list[Cost]]:
    """Returns the cost of a call of each kind, round by round, without a first round: files come from the disk."""
    costs: dict[str, list[Cost]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind, call in list(kinds.items())[:: 1 if number % 2 else -1]:
            cost = await cost_of(call, calls, clock)
            if number:
                costs[kind].append(cost)
    return costs


def ratio(costs: list[Cost], against: list[Cost]) -> float:
    """Returns the median of the ratios of processor times."""
    return median_ratio([cost.processor_s for cost in costs], [cost.processor_s for cost in against], 3)


async def measure(rounds: int) -> dict[str, Any]:
    """Measures all kinds in turns."""
    sandbox_processes._START = UNWAITED + sandbox_processes._START
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
    # Blocks: the processor time of other processes is counted in steps of 10 ms.
    processes = await turns(kinds, rounds, CALLS, processor_s)
    # Apart from processes, whose starts leave cold caches to whatever follows.
    scorers: dict[str, Callable[[], Awaitable[object]]] = {
        "package": lambda: package.score("4", TASK),
        "source": lambda: source.score("4", TASK),
    }
    worker = await turns(scorers, 5 * rounds, IN_WORKER, time.process_time)
    return {
        "rounds": rounds,
        "load": round(os.getloadavg()[1], 1),
        "processor_ms": {
            kind: median_of((1000 * cost.processor_s for cost in costs), 1) for kind, costs in processes.items()
        },
        "clock_ms": {kind: median_of((1000 * cost.clock_s for cost in costs), 1) for kind, costs in processes.items()},
        "in_worker_processor_us": median_of((1e6 * cost.processor_s for cost in worker["source"]), 1),
        "ratio_source_to_package": ratio(worker["source"], worker["package"]),
        "ratio_namespaces_to_python": ratio(processes["namespaces"], processes["python"]),
        "ratio_confined_to_python": ratio(processes["confined"], processes["python"]),
    }


if __name__ == "__main__":
    tell(asyncio.run(measure(read_options(__doc__, rounds=20).rounds)))
