"""`Membership`: a worker process's identity, heartbeats, and departure. Shared by explorers and trainers."""

from __future__ import annotations

import asyncio
import math
import os
import platform
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import psutil

from rftd.ops import faults, limits
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, explain
from rftd.ops.ids import Ids
from rftd.ops.log_file import OwnOutput
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.events.worker import Heartbeat, WorkerStarted, WorkerStopped
from rftd.streams.folds.sync_failure import SyncFailure
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.codec import Writer
from rftd.streams.log.log import EventLog
from rftd.streams.log.writers import source_of

CHILDREN_S: Final = 30.0
"""Seconds between two searches for new children: a search reads all processes of the machine."""


class Used(msgspec.Struct, frozen=True):
    """Resident memory in bytes and processor time in seconds, summed over processes."""

    memory_bytes: int
    """Resident memory in bytes."""
    cpu_s: float
    """Processor time in seconds."""


NO_USAGE: Final = Used(0, 0.0)
"""The figures reported for a worker running inside a process with other work."""


class Usage:
    """Measures memory and processor time of the current process and its children: ranks, engines, reward judges."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        """The current process, in which the worker runs."""
        self._all = [self._own]
        """The current process and its children, as found by the last search."""
        self._looked_s = -math.inf
        """Monotonic time of the last search for children."""

    def used(self, now_s: float) -> Used:
        """Returns memory and processor time summed over all running processes; `now_s` is monotonic time, and decides
        when to search for new children.
        """
        if now_s - self._looked_s >= CHILDREN_S:
            self._all = [self._own, *self._own.children(recursive=True)]
            self._looked_s = now_s
        memory_bytes = 0
        cpu_s = 0.0
        for process in self._all:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory_bytes += process.memory_info().rss
                    cpu_s += times.user + times.system
            except psutil.Error:
                continue  # it has ended
        return Used(memory_bytes, cpu_s)


class Pulse(msgspec.Struct, kw_only=True):
    """The content of the next heartbeat; set by the worker's loop, read by the heartbeat task."""

    state: WorkerState = WorkerState.LOAD
    """What the worker does or waits for."""
    free: int = 0
    """Number of further rollouts that the worker could take now."""
    leases: tuple[UUID, ...] = ()
    """Unfinished leases with progress since the last heartbeat."""
    version: int = -1
    """Weight version in use; -1 before the first."""
    tokens_total: int = 0
    """Tokens sampled since the start."""
    rollouts_total: int = 0
    """Rollouts ended since the start."""
    sync_failures: Counter[SyncFailure] = msgspec.field(default_factory=Counter)
    """Failed weight transfers by reason."""


class ProcessName(msgspec.Struct, frozen=True, kw_only=True):
    """The unique name of an operating system process, unambiguous over reused pids, reboots and containers."""

    host: str
    """Name of the machine."""
    pid: int
    """Process id."""
    start_s: float
    """The process's start time according to the operating system; pids are reused."""
    boot_id: str = ""
    """The id of the machine's boot; empty if the operating system provides none."""
    pid_namespace: int = 0
    """The namespace of `pid`, different for each container of a machine; 0: unknown."""

    def sees(self, started: WorkerStarted) -> bool:
        """True if the worker's pid identifies its process from here: equal machine, boot and PID namespace. Of other
        workers only heartbeats tell whether they run.
        """
        # An empty id comes from an operating system without boot ids: no argument against the worker.
        same_boot = started.boot_id in ("", self.boot_id)
        same_names = started.pid_namespace in (0, self.pid_namespace)
        return started.host == self.host and same_boot and same_names


def this_process() -> ProcessName:
    """Returns the name of the calling process, as announced in `worker.started`."""
    return ProcessName(
        host=platform.node(),
        pid=os.getpid(),
        start_s=psutil.Process().create_time(),
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
    )


def _boot_id() -> str:
    """Returns the id of the machine's boot; empty without one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _pid_namespace() -> int:
    """Returns the number of this process's PID namespace; 0 if unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


class Membership:
    """The identity of one worker of an experiment, and the writer of its events `worker.started`, `worker.heartbeat`
    and `worker.stopped`.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        experiment: UUID,
        role: str,
        slot: int,
        clock: Clock,
        ids: Ids,
        id: UUID | None = None,
        process: ProcessName | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`id` comes from the daemon's order; None: a worker started without one, with a new id. `process` is the
        process of the worker; None: the current one.

        Each start has a new id, so that leases of an earlier worker in the slot do not count.
        """
        self.id = id or ids.new()
        self._process = process or this_process()
        # A foreign process may contain more than the worker.
        self._usage = Usage() if process is None else None
        self._memory_peak_bytes = 0
        name = f"{role}.log" if slot < 0 else f"{role}_{slot}.log"
        # The launcher of an order names the log so; other starters may write anywhere.
        self._output = OwnOutput(name) if process is None and id is not None else None
        self.log = log
        self.experiment = experiment
        self.role = role
        self.slot = slot
        self.clock = clock
        self.ids = ids
        self.tracer = tracer
        """The tracer of this worker's spans; None without tracing."""
        self.pulse = Pulse()
        self.source = source_of(role, self.id)
        self.writer = Writer(source=self.source, clock=clock, ids=ids)

    async def join(self, capacity: int) -> None:
        """Announces the worker as ready (`worker.started`), with room for `capacity` simultaneous rollouts."""
        started = WorkerStarted(
            worker=self.id,
            role=self.role,
            slot=self.slot,
            host=self._process.host,
            pid=self._process.pid,
            process_start_s=self._process.start_s,
            capacity=capacity,
            boot_id=self._process.boot_id,
            pid_namespace=self._process.pid_namespace,
        )
        faults.point("worker.before_join")
        await self._append(started)
        faults.point("worker.after_join")

    async def leave(self, error: RftdError | None = None) -> None:
        """Announces the worker's end (`worker.stopped`) with its peak memory: clean without an error, else with the
        error's code and text.
        """
        await self._append(
            WorkerStopped(
                worker=self.id,
                role=self.role,
                slot=self.slot,
                code=error.code if error else "",
                reason=explain(error) if error else "",
                memory_peak_bytes=self._memory_peak_bytes,
            )
        )

    @asynccontextmanager
    async def beating(self, refresh: Callable[[], None]) -> AsyncIterator[None]:
        """Sends heartbeats as `beat` does, while the block runs; an error of the block or of a heartbeat surfaces in an
        exception group.
        """
        async with asyncio.TaskGroup() as tasks:
            beat = tasks.create_task(self.beat(refresh))
            try:
                yield
            finally:
                beat.cancel()

    async def beat(self, refresh: Callable[[], None]) -> None:
        """Sends a heartbeat every `limits.HEARTBEAT_INTERVAL_S` until cancelled; `refresh` is called before each, to
        update `pulse`.
        """
        while True:
            refresh()
            if self._output is not None and self._output.full:
                await asyncio.to_thread(self._output.trim)
            used = self._usage.used(self.clock.monotonic_s()) if self._usage is not None else NO_USAGE
            self._memory_peak_bytes = max(self._memory_peak_bytes, used.memory_bytes)
            await self._append(
                Heartbeat(
                    worker=self.id,
                    role=self.role,
                    slot=self.slot,
                    state=self.pulse.state.value,
                    free=self.pulse.free,
                    leases=self.pulse.leases,
                    version=self.pulse.version,
                    tokens_total=self.pulse.tokens_total,
                    rollouts_total=self.pulse.rollouts_total,
                    memory_bytes=used.memory_bytes,
                    cpu_s=used.cpu_s,
                    spans_dropped_total=0 if self.tracer is None else self.tracer.dropped_total,
                    sync_failures=tuple((reason.value, count) for reason, count in self.pulse.sync_failures.items()),
                )
            )
            await self.clock.sleep(limits.HEARTBEAT_INTERVAL_S)

    async def _append(self, event: WorkerStarted | WorkerStopped | Heartbeat) -> None:
        """Appends an event of the worker, waiting while the log is full."""
        draft = self.writer.draft(event, experiment=self.experiment)
        # A full disk is waited out: a failing heartbeat would end a faultless worker.
        await append_when_space(self.log, [draft], clock=self.clock)
