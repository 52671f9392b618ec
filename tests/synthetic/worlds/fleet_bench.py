"""A fleet whose processes do nothing by themselves, on a clock of its own."""

from __future__ import annotations

import platform
from typing import Any

import msgspec
from synthetic.worlds.desk import Desk

from rftd.daemon.run.supervisor.fleet import Fleet
from rftd.ops.clock import ManualClock
from rftd.ops.logs import logger
from rftd.ops.words import Words
from rftd.streams.events.worker import WorkerLost, WorkerStarted
from rftd.workers.control.liveness import Liveness
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.hosts.executor import Handle, WorkerOrder
from rftd.workers.hosts.membership import this_process

START_S = 20.0


class Process:
    """One that runs until it is killed."""

    def __init__(self, pid: int, order: WorkerOrder) -> None:
        self.pid: int | None = pid
        self.waits: Words | None = None
        self.reason = ""
        self.order = order
        self.killed = False
        self.deaf = False
        """Not even a kill ends it."""
        self.code: int | None = None
        """The exit code of one that ended by itself."""

    def exit_code(self) -> int | None:
        if self.code is not None:
            return self.code
        return -9 if self.killed and not self.deaf else None

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        self.killed = True


class Processes:
    """An executor whose processes do nothing by themselves."""

    def __init__(self) -> None:
        self.started: list[Process] = []
        self.living: set[int] = set()
        self.leftover: Process | None = None
        self.in_the_way: str | None = None
        """Of explorers: they are not started; and if it is not empty, they say what they wait for."""

    def start(self, order: WorkerOrder) -> Handle:
        process = Process(1000 + len(self.started), order)
        if order.role == "explorer" and self.in_the_way is not None:
            process.pid = None
            process.waits = Words("leftovers", self.in_the_way) if self.in_the_way else None
        self.started.append(process)
        return process

    def host(self) -> Host:
        return ANY_HOST

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return None

    def lives(self, started: WorkerStarted) -> bool | None:
        return started.pid in self.living if this_process().sees(started) else None

    def clear(self, order: WorkerOrder) -> Handle | None:
        return self.leftover

    def of(self, role: str) -> list[Process]:
        return [each for each in self.started if each.order.role == role]


class FleetBench:
    """A fleet of one trainer and one explorer, on a clock of its own."""

    def __init__(self, processes: Processes | None = None) -> None:
        self.liveness = Liveness(1e9)
        self.desk = Desk(on_sign_of_life=self.liveness.note)
        self.clock, self.processes = ManualClock(), processes or Processes()
        spec = self.desk.state.spine.spec
        assert spec is not None
        self.fleet = Fleet(
            self.desk.state,
            self.processes,
            self.liveness,
            clock=self.clock,
            ids=self.desk.recorder.ids,
            log=logger(),
            start_timeout_s=START_S,
        )
        self.fleet.take_up(msgspec.structs.replace(spec, job_dir="/nowhere"))

    def join(self, process: Process, **identity: Any) -> WorkerStarted:
        """The process announces itself."""
        order = process.order
        assert process.pid is not None
        named = {"worker": order.worker, "host": platform.node(), "pid": process.pid} | identity
        started = WorkerStarted(role=order.role, slot=order.slot, process_start_s=1.0, **named)
        self.desk.put(started, key=started.worker)
        return started

    async def after(self, delay_s: float) -> list[WorkerLost]:
        """A while later the fleet looks again."""
        self.clock.advance(delay_s)
        return self.fleet.tend()

    def why_of(self, role: str) -> str:
        """The reason for which the last process of that role ended, as `rftd why` is told."""
        [place] = [each for each in self.fleet.processes() if each.role == role]
        return place.last_why
