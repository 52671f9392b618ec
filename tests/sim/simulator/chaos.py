"""The faults of a scenario, when their time has come or a process passes the point that they wait for."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from rftd.ops import faults
from rftd.storage.files.workplace import epoch_of, original_of
from rftd.streams.memory import NO_FAULTS
from simulator.engines import Mishaps
from simulator.loop import PROCESS, SimLoop, SimProcess
from simulator.machine import HOST, Machine
from simulator.scenario import Scenario, Strike


class Chaos:
    """Carries out the strikes of one world."""

    def __init__(self, loop: SimLoop, machine: Machine, scenario: Scenario, job: Path, mishaps: Mishaps) -> None:
        self._loop, self._machine, self._scenario, self._job = loop, machine, scenario, job
        self._mishaps = mishaps
        self.damaged: set[Path] = set()
        """Checkpoint folders that are damaged on purpose; of one that a trainer has staged also its name to be."""
        self._armed = [strike for strike in scenario.strikes if strike.point]
        self._random = random.Random(f"chaos {scenario.seed}")
        self._calm = False
        self.late_until_s = 0.0
        """Until then something may be under way that was sent before the calm."""
        self.hits: Counter[str] = Counter()
        """How often each strike and each point was met."""

    def start(self, world: SimProcess) -> None:
        """Sets the clock of every strike that has a time."""
        for strike in self._scenario.strikes:
            if not strike.point:
                world.spawn(self._later(strike))
        world.spawn(self._become_calm())

    async def _later(self, strike: Strike) -> None:
        await asyncio.sleep(strike.at_s)
        found = self._machine.of(strike.role)
        if strike.kind in ("damage", "litter"):
            self._damage(strike.kind)
        elif found and not self._calm:
            self._strike(strike, self._random.choice(found))

    async def _become_calm(self) -> None:
        """Nothing new goes wrong; who is stopped or cut off comes back when its time is over."""
        await asyncio.sleep(self._scenario.calm_s)
        self._calm = True
        self._armed.clear()
        network = self._machine.network
        network.log.faults = NO_FAULTS
        if network.weather.slow_p > 0.0:
            self.late_until_s = self._loop.time() + network.weather.slow_s
        network.weather.slow_p = network.weather.stale_p = 0.0
        network.weather.grace_s = max(10.0, network.weather.grace_s)
        self._mishaps.hang_p = self._mishaps.fail_p = 0.0
        self._machine.tell("from here on nothing goes wrong any more")

    def point(self, name: str) -> None:
        """A process passes a point: replaces `faults.point` while the world lasts."""
        process = self._loop.current
        if process is None or not process.alive:
            return
        self.hits[name] += 1
        if not self._armed:
            return
        for strike in self._armed:
            if strike.point == name and strike.role == process.role:
                process.hits[name] += 1
                if process.hits[name] >= strike.nth:
                    self._armed.remove(strike)
                    self._strike(strike, process)
                    return

    def _strike(self, strike: Strike, process: SimProcess) -> None:
        self.hits[f"{strike.kind} {strike.role}"] += 1
        place = f" at {strike.point}" if strike.point else ""
        seconds = f" for {strike.for_s:g} s" if strike.for_s else ""
        self._machine.tell(f"{strike.kind.upper()} {process.name}{place}{seconds}")
        match strike.kind:
            case "kill":
                process.kill()
            case "stop":
                context = self._machine.network.server.context
                self._loop.call_later(strike.for_s, self._wake, process, context=context)
                process.stop()
            case "cut":
                network = self._machine.network
                network.cut_off[process] = None
                process.disturbed_s = self._loop.time() + strike.for_s
                self._loop.call_later(strike.for_s, self._heal, process, context=network.server.context)
            case _:
                if process.running:
                    process.spawn(self._drain(process))

    def _wake(self, process: SimProcess) -> None:
        if process.alive:
            self._machine.tell(f"WAKE {process.name}")
            process.wake()

    def _heal(self, process: SimProcess) -> None:
        self._machine.network.cut_off.pop(process, None)
        self._machine.tell(f"HEAL {process.name}")

    async def _drain(self, process: SimProcess) -> None:
        await self._machine.daemons[process].runs.drain()
        process.kill(0)

    def _damage(self, kind: str) -> None:
        """A committed checkpoint loses a bit or a file, or a half-written folder is left behind."""
        folders = sorted(self._job.rglob("global_step_*"))
        if not folders:
            return
        folder = self._random.choice(folders)
        if kind == "litter":
            for name in (f".{folder.name}.tmp", f".{folder.name}.old"):
                folder.with_name(name).mkdir(exist_ok=True)
                (folder.with_name(name) / "half").write_bytes(b"half a file")
            self.hits["litter"] += 1
            return
        path = self._random.choice(sorted(each for each in folder.rglob("*") if each.is_file()))
        self.hits["damage"] += 1
        self.damaged |= {folder, _becomes(folder)}
        self._machine.tell(f"DAMAGE {path.relative_to(self._job)}")
        if self._random.random() < 0.3:
            path.unlink()
            return
        data = bytearray(path.read_bytes())
        data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        path.write_bytes(data)


def _becomes(folder: Path) -> Path:
    """The place of a folder in a trainer's workplace once it is moved: its digests were taken when it was staged."""
    outside = next(above for above in folder.parents if not epoch_of(above.name))
    return outside / original_of(folder.name)


@contextmanager
def patched(point: Callable[[str], None]) -> Iterator[None]:
    """The product passes its fault points, and the file operations of processes, here."""

    def passing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def pass_and_call(*args: Any, **options: Any) -> Any:
            if PROCESS.get(None) is not None:
                point(name)
            return call(*args, **options)

        return pass_and_call

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(faults, "point", point))
        stack.enter_context(mock.patch("platform.node", lambda: HOST))
        for name, call in (("fsync", lambda _file: None), ("rename", os.rename), ("replace", os.replace)):
            stack.enter_context(mock.patch.object(os, name, passing(f"file.{name}", call)))
        for name in ("mkdir", "unlink", "rmdir"):
            stack.enter_context(mock.patch.object(os, name, passing(f"file.{name}", getattr(os, name))))
        stack.enter_context(mock.patch.object(os, "listdir", passing("file.list", os.listdir)))
        yield
