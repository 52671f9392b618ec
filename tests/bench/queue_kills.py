"""Tasks that are added to a running queue at 1,000 a second while the daemon is killed again and again.

Every task that was acknowledged is in the log once, in its order, and is tried; `verify` finds nothing. The pace is
that from the first task until, after the last kill, those are added that were due while no daemon answered.
Run: python -P tests/bench/queue_kills.py [--kills 20] [--per-s 1000] [--seed 1]
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views import commands
from rftd.daemon.http.views import tasks as view
from rftd.ops.errors import NotFoundError, UnreachableError, WaitTimeoutError
from rftd.streams.events.task import TaskLeased, TasksAdded

QUEUE: Final = (
    "stages=[]",
    "algorithm.repeat_times=2",
    "buffer.batch_size=32",
    "buffer.total_steps=100000",
    "explorer.eval_interval=100000",
    "explorer.runner_per_model=64",
    "explorer.rollout_model.extra_engine_args.latency_s=0.01",
    "trainer.save_interval=1000",
    "buffer.explorer_input.taskset.storage_type=queue",
    "buffer.explorer_input.taskset.path=null",
)
BATCH: Final = 250
"""Tasks of one request."""
BEHIND_S: Final = 60.0
"""The longest that tasks are added after the last kill by a machine that is too busy for the pace."""


def task(number: int) -> dict[str, str]:
    """A task that is told apart from every other one."""
    return {"question": f"{number}+1=", "answer": str(number + 1)}


class Adder(threading.Thread):
    """Adds tasks at a pace, each request under its own key until it is answered."""

    def __init__(self, scene: Scene, name: str, per_s: float) -> None:
        super().__init__()
        self.added = 0
        self.repeated = 0
        self.over = threading.Event()
        self._scene = scene
        self._name = name
        self._per_s = per_s
        self._client: Client | None = None
        self._closing = ExitStack()

    def run(self) -> None:
        """Adds until it is told that it is over, and no task is due any more or it stays behind."""
        began_s = time.monotonic()
        over_s = math.inf
        while True:
            now_s = time.monotonic()
            ahead_s = self.added / self._per_s - (now_s - began_s)
            if self.over.is_set():
                over_s = min(over_s, now_s)
                if ahead_s > 0 or now_s > over_s + BEHIND_S:
                    return
            if ahead_s > 0:
                time.sleep(ahead_s)
            self._send()

    def close(self) -> None:
        """Closes the client; the next request makes another."""
        self._client = None
        self._closing.close()

    def _send(self) -> None:
        body = view.AddTasks(tasks=[task(self.added + number) for number in range(BATCH)])
        while True:
            try:
                # One client for as long as its daemon lives: making one costs as much as a request.
                if self._client is None:
                    self._client = self._closing.enter_context(self._scene.client())
                self._client.send(view.add_tasks, body, name=self._name, request_id=f"from {self.added}")
                self.added += BATCH
                return
            # The tables of a daemon that begins anew may not hold the name yet.
            except (UnreachableError, WaitTimeoutError, NotFoundError):
                self.repeated += 1
                self.close()
                time.sleep(0.05)


def main() -> None:
    """Prints the figures as JSON, and fails if a task was lost or came twice."""
    options = read_options(__doc__, kills=20, per_s=1000.0, seed=1)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="rftd-queue-") as folder:
        scene = Scene(Path(folder))
        with scene.host:
            name = scene.submit(EXPERIMENT, *QUEUE)
            scene.until_state(name, "running")
            adder = Adder(scene, name, options.per_s)
            adder.start()
            began_s = time.monotonic()
            try:
                while scene.host.restarts < options.kills:
                    time.sleep(chance.uniform(0.5, 4.0))
                    scene.kill("daemon", name)
                    killed = scene.host.restarts
                    while scene.host.restarts == killed:
                        scene.host.tend()
            finally:
                adder.over.set()
                adder.join()
                adder.close()
            spent_s = time.monotonic() - began_s
            kills = scene.host.restarts
            tried_by = scene.page(name)
            assert tried_by is not None and tried_by.experiment.summary.step > 0, tried_by
            with scene.client() as client:
                client.send(commands.cancel, commands.Reason(), name=name)
            scene.until_ended(name)
            rows = [json.loads(text) for event in scene.events(TasksAdded) for text in event.tasks]
            groups = {(event.group, event.row) for event in scene.events(TaskLeased)}
            report = scene.verified()
    counts = Counter(row["question"] for row in rows)
    wanted = [task(number)["question"] for number in range(adder.added)]
    leased = Counter(row for _, row in groups)
    tell(
        {
            "kills": kills,
            "added": adder.added,
            "added_per_s": adder.added / spent_s,
            "repeated_requests": adder.repeated,
            "lost": sum(not counts[question] for question in wanted),
            "twice": sum(count > 1 for count in counts.values()),
            "in_order": [row["question"] for row in rows] == wanted,
            "given_out": len(leased),
            "given_out_twice": sum(count > 1 for count in leased.values()),
            "given_out_in_order": sorted(leased) == list(range(len(leased))),
            "findings": [finding.what for finding in report.findings],
        }
    )
    good = counts == Counter(wanted) and sorted(leased) == list(range(len(leased))) and report.clean
    sys.exit(0 if good and max(leased.values()) == 1 else 1)


if __name__ == "__main__":
    main()
