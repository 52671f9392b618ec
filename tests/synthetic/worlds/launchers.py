"""Launchers in a world of their own: what a contract needs of each, and a cluster that takes a minute to place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

import psutil
from synthetic.until import poll

from rftd.ops.clock import ManualClock
from rftd.ops.ids import SystemIds
from rftd.ops.words import Words
from rftd.streams.events.worker import WorkerStarted
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.hosts.by_role import ExecutorByRole
from rftd.workers.hosts.executor import Executor, Handle, WorkerOrder
from rftd.workers.hosts.local import LocalExecutor
from rftd.workers.hosts.membership import this_process

PLACING_S: Final = 60.0
BUSY: Final = "2 GPUs on one node; 1 is free"


class LauncherWorld(Protocol):
    """A launcher, and how a test of it makes time pass."""

    executor: Executor

    def another(self) -> Executor:
        """The launcher of the next daemon, which knows of no worker."""
        ...

    def until(self, condition: Callable[[], bool]) -> None:
        """Returns once it holds. Raises TimeoutError or AssertionError."""
        ...

    def started(self, order: WorkerOrder, handle: Handle) -> WorkerStarted:
        """The announcement of a worker that runs."""
        ...


def order_of(folder: Path, role: str = "trainer", slot: int = -1, **changes: Any) -> WorkerOrder:
    """An order with an id of its own."""
    id = UUID(bytes=SystemIds(ManualClock()).new().bytes)
    return WorkerOrder(
        worker=id,
        experiment=UUID(int=7),
        role=role,
        slot=slot,
        threads=1,
        log_path=folder / "log" / f"{role}.log",
        **changes,
    )


class LocalWorld:
    """Processes of this machine that sleep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "worker.py").write_text("import time\ntime.sleep(600)\n")
        self.executor: Executor = self.another()

    def another(self) -> Executor:
        command = (sys.executable, str(self._folder / "worker.py"))
        return LocalExecutor("none", home=str(self._folder), command=command, host=lambda: ANY_HOST)

    def until(self, condition: Callable[[], bool]) -> None:
        poll(condition, 30.0)

    def started(self, order: WorkerOrder, handle: Handle) -> WorkerStarted:
        assert handle.pid is not None
        name = this_process()
        return WorkerStarted(
            worker=order.worker,
            role=order.role,
            slot=order.slot,
            host=name.host,
            pid=handle.pid,
            process_start_s=psutil.Process(handle.pid).create_time(),
            boot_id=name.boot_id,
            pid_namespace=name.pid_namespace,
        )


class ByRoleWorld(LocalWorld):
    """The same processes, each role's by a launcher of its own."""

    def another(self) -> Executor:
        return ExecutorByRole({"explorer": super().another(), "trainer": super().another()})


class Placed:
    """A worker of the slow cluster."""

    def __init__(self, cluster: SlowCluster, order: WorkerOrder) -> None:
        self.cluster = cluster
        self.order = order
        self.asked_s = cluster.clock.monotonic_s()
        self.code: int | None = None
        self.reason = ""

    @property
    def _placed(self) -> bool:
        return self.cluster.clock.monotonic_s() - self.asked_s >= PLACING_S

    @property
    def pid(self) -> int | None:
        return 77 if self._placed and not self.reason.startswith("given up") else None

    @property
    def waits(self) -> Words | None:
        return None if self._placed or self.code is not None else Words("placing", BUSY, "the cluster", "one is free")

    def exit_code(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self._end(0)

    def kill(self) -> None:
        self._end(-9)

    def _end(self, code: int) -> None:
        if self.code is None:
            self.reason = "" if self._placed else "given up before it was placed"
            self.code = code if self._placed else -1


class SlowCluster:
    """Takes a minute to place a worker, on a machine that nobody sees from here."""

    def __init__(self, clock: ManualClock, workers: dict[UUID, Placed] | None = None) -> None:
        self.clock = clock
        self.workers: dict[UUID, Placed] = {} if workers is None else workers

    def start(self, order: WorkerOrder) -> Handle:
        self.workers[order.worker] = Placed(self, order)
        return self.workers[order.worker]

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        found = self.workers.get(started.worker)
        return found if found is not None and found.exit_code() is None else None

    def lives(self, started: WorkerStarted) -> bool | None:
        return self.workers[started.worker].exit_code() is None if started.worker in self.workers else None

    def host(self) -> Host:
        return ANY_HOST

    def clear(self, order: WorkerOrder) -> Handle | None:
        return None


class SlowWorld:
    """The slow cluster, on a clock that moves when a test waits."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.cluster = SlowCluster(self.clock)
        self.executor: Executor = self.cluster

    def another(self) -> Executor:
        return SlowCluster(self.clock, self.cluster.workers)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            if condition():
                return
            self.clock.advance(0.1)
        raise AssertionError("a hundred seconds passed")

    def started(self, order: WorkerOrder, handle: Handle) -> WorkerStarted:
        return WorkerStarted(
            worker=order.worker, role=order.role, slot=order.slot, host="elsewhere", pid=77, process_start_s=1.0
        )
