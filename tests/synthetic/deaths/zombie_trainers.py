"""Trainers that are stopped or killed at any operation on files, replaced, and wake while others train."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
from synthetic.daemon.scene import ENDED, EXPERIMENT, Scene
from synthetic.until import PATIENCE_S

from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.run.registry import find_entry
from rftd.daemon.serve.log_source import log_to_read
from rftd.ops.clock import SystemClock
from rftd.ops.errors import RftdError
from rftd.ops.ids import SystemIds
from rftd.storage.files.checkpoints import misses_its_folder, verify
from rftd.storage.files.unreferenced import referenced_in
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.workers.weights import checkpoint

STRUCK = Path(__file__).with_name("struck_worker.py")
LOST_AFTER = ("--workers", "external", "--worker-lost-after", "2s")
"""Options of the daemon: nobody but the test starts trainers, and they are replaced soon."""
OPERATIONS = 160
"""A trainer is struck at one of its first so many: they cover a take-up, and several publications and checkpoints."""
STEPS = 60


class Struck(msgspec.Struct, kw_only=True):
    """The counts of a series of struck trainers."""

    runs: int = 0
    stopped: int = 0
    killed: int = 0
    spared: int = 0
    """Trainers whose run ended before their strike."""
    asleep_s: float = 0.0
    """The time for which stopped trainers stood still, all together."""
    at: Counter[str] = msgspec.field(default_factory=Counter)
    """The number of trainers struck at each operation; digits are left out of its name."""
    steps: int = 0
    executions: int = 0
    generations: int = 0
    weights: int = 0
    """Weights that are announced and not retired, and were read to the last tensor."""
    checkpoints: int = 0
    """Checkpoints that are committed and not deleted, and are whole."""
    broken: list[str] = []
    """Promises that were not kept. Must stay empty."""
    wall_s: float = 0.0


class Zombies:
    """One series on one scene, whose daemon was started with `LOST_AFTER`."""

    def __init__(
        self, scene: Scene, chance: random.Random, log: Sequence[str], *, asleep_s: tuple[float, float] = (5.0, 20.0)
    ) -> None:
        """`log`: how workers reach it, as options of `rftd worker`."""
        self.counts = Struck()
        self._scene = scene
        self._chance = chance
        self._log = tuple(log)
        self._asleep_s = asleep_s
        self._number = 0
        self._zombies: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._woken: list[subprocess.Popen[bytes]] = []

    def series(self, strikes: int, *, per_run: int = 12) -> Struck:
        """Runs experiments one after the other until so many trainers were struck."""
        began_s = time.monotonic()
        counts = self.counts
        explorer = self._scene.spawn("explorer", "worker", "explorer", *self._log)
        try:
            while counts.stopped + counts.killed < strikes and len(counts.broken) < 5:
                self._run(min(per_run, strikes - counts.stopped - counts.killed))
        finally:
            explorer.kill()
            explorer.wait()
        counts.wall_s = round(time.monotonic() - began_s, 1)
        return counts

    def _run(self, strikes: int) -> None:
        overrides = ("stages=[]", f"buffer.total_steps={STEPS}", "explorer.eval_interval=10")
        saves = ("trainer.save_interval=2", "trainer.max_checkpoints_to_keep=2")
        name = self._scene.submit(EXPERIMENT, f"name=struck_{self.counts.runs}", *overrides, *saves)
        self.counts.runs += 1
        last: subprocess.Popen[bytes] | None = None
        try:
            for _ in range(strikes):
                if not self._strike(name):
                    break
            last = self._scene.spawn("last", "worker", "trainer", *self._log)
            page = self._until_ended(name)
            self._wake(everybody=True)
            self._judge(name, page)
        except AssertionError as error:
            self.counts.broken.append(f"{name}: {error}")
        finally:
            self._wake(everybody=True)
            if last is not None:
                last.kill()
                last.wait()

    def _strike(self, name: str) -> bool:
        """One trainer more, until it is struck; False if the run ended before that."""
        self._number += 1
        how = "stop" if self._chance.random() < 0.75 else "kill"
        nth = self._chance.randint(1, OPERATIONS)
        note = self._scene.folder / f"strike-{self._number}"
        arguments = (how, str(nth), str(self._scene.folder / "checkpoints"), str(note))
        process = self._trainer(*arguments)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            self._wake()
            if process.poll() is not None:
                break
            if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                asleep_s = self._chance.uniform(*self._asleep_s)
                self.counts.asleep_s += asleep_s
                self._zombies.append((time.monotonic() + asleep_s, process))
                break
            if self._ended(name):
                self.counts.spared += 1
                process.kill()
                process.wait()
                return False
            assert time.monotonic() < deadline_s, f"no strike at operation {nth}: {self._scene.page(name)}"
            time.sleep(0.05)
        if process.returncode in (None, -signal.SIGKILL):
            self.counts.stopped += how == "stop"
            self.counts.killed += how == "kill"
            self.counts.at[note.read_text()] += 1
            return True
        log = (self._scene.folder / "struck.log").read_text()[-1500:]
        raise AssertionError(f"a trainer ended by itself with status {process.returncode}: {log}")

    def _trainer(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._scene.folder / "struck.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", str(STRUCK), *arguments, "worker", "trainer", *self._log],
                cwd=self._scene.folder,
                env=self._scene.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _wake(self, *, everybody: bool = False) -> None:
        """Lets those go on whose time has come; `everybody`: when it has come, and until they have ended."""
        while self._zombies:
            now_s = time.monotonic()
            for due_s, process in [each for each in self._zombies if each[0] <= now_s]:
                self._zombies.remove((due_s, process))
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                self._woken.append(process)
            if not everybody:
                return
            time.sleep(0.05)
        if everybody:
            for process in self._woken:
                try:
                    process.wait(15.0)
                except subprocess.TimeoutExpired:  # it stands by for the next experiment, as it may
                    process.kill()
                    process.wait()
            self._woken.clear()

    def _ended(self, name: str) -> bool:
        page = self._scene.page(name)
        return page is not None and page.experiment.summary.state in ENDED

    def _until_ended(self, name: str) -> ExperimentPage:
        deadline_s = time.monotonic() + 2 * PATIENCE_S
        while True:
            self._wake()
            page = self._scene.page(name)
            if page is not None and page.experiment.summary.state in ENDED:
                return page
            assert time.monotonic() < deadline_s, f"it does not end: {page}"
            time.sleep(0.05)

    def _judge(self, name: str, page: ExperimentPage) -> None:
        counts, scene = self.counts, self._scene
        page = scene.page(name) or page
        summary, books = page.experiment.summary, page.experiment.books
        if summary.state != "completed" or summary.step != STEPS or books.balance:
            counts.broken.append(f"{name}: {summary} {books}")
        report = scene.verified()
        counts.broken += [f"{name}: {finding}" for finding in report.findings]
        found = next(each for each in report.experiments if each.name == name)
        counts.steps += found.steps
        counts.executions += found.executions
        counts.generations += found.generations
        weights, checkpoints = asyncio.run(self._named(name))
        committed = [event for event in scene.events(CheckpointCommitted) if event.path in checkpoints]
        for path in sorted(weights):
            try:
                checkpoint.read(Path(path))
                counts.weights += 1
            except RftdError as error:
                counts.broken.append(f"{name}: {path} is announced: {error}")
        for path in sorted(checkpoints):
            if any(_whole(event) for event in committed if event.path == path):
                counts.checkpoints += 1
            else:
                counts.broken.append(f"{name}: {path} is committed, and not whole")
            if misses_its_folder(Path(path).parent):
                counts.broken.append(f"{name}: the marker beside {path} names a folder that is gone")

    async def _named(self, name: str) -> tuple[frozenset[str], frozenset[str]]:
        clock = SystemClock()
        async with log_to_read(self._scene.data, self._scene.log_at, clock=clock, ids=SystemIds(clock)) as log:
            kept = await referenced_in(log, (await find_entry(log, name)).id, artifacts=False)
        return kept.weights, kept.checkpoints


def _whole(event: CheckpointCommitted) -> bool:
    try:
        verify(Path(event.path), event.files)
    except RftdError:
        return False
    return True
