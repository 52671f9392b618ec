"""`LocalExecutor`: worker processes on the daemon's machine, each in a separate session, so that they survive the
daemon's terminal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec
import psutil

from rftd.ops import limits
from rftd.ops.errors import WorkError
from rftd.ops.own_folder import FolderAccess
from rftd.ops.processors import threads_of
from rftd.ops.tracing.trace_options import TraceOptions
from rftd.ops.words import Level, Words
from rftd.streams.events.worker import WorkerStarted
from rftd.workers.devices.discovery import VISIBLE, find_host, installed_packages
from rftd.workers.devices.host import Host
from rftd.workers.hosts.allotment import Allotment
from rftd.workers.hosts.environment import WorkerEnvironment
from rftd.workers.hosts.executor import UNKNOWN_EXIT, Handle, Search, WorkerOrder
from rftd.workers.hosts.leftovers import MARK, lives
from rftd.workers.hosts.local_search import LocalSearch
from rftd.workers.hosts.local_slot import LocalSlot, Spawn, exit_code_of, start_process
from rftd.workers.hosts.membership import this_process

NOT_STARTED: Final = 127
"""Exit code of a process that could not be started."""
# Start times are in ticks of the kernel, usually 10 ms, and computed from the boot time.
_SAME_START_S: Final = 0.02
"""Tolerated difference in seconds between two readings of a start time."""


class OrderedProcess:
    """Handle of a worker process ordered by this daemon: a thread starts the process once the slot's previous processes
    have ended.
    """

    def __init__(self, slot: LocalSlot, role: str, spawn: Spawn) -> None:
        """`spawn` creates the process once the slot is free."""
        self._slot = slot
        self._role = role
        self._spawn = spawn
        self._given_up = threading.Event()
        """Set once the process is not wanted any more."""
        self._child: subprocess.Popen[bytes] | None = None
        """The process of the worker; None before the process has started."""
        self._failure = ""
        """Why the process could not be started; empty otherwise."""
        # On a thread: waiting for an empty slot, and forking a large process, must not block the daemon's loop.
        threading.Thread(target=self._start_when_free, name=f"start-{role}", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None before the start of the process."""
        return None if self._child is None else self._child.pid

    @property
    def reason(self) -> str:
        """Why the process could not be started, in words; empty otherwise."""
        return self._failure

    @property
    def alive(self) -> bool:
        """True while the process waits for its start or runs; unlike `exit_code`, never begins to end leftovers."""
        if self._child is None:
            return not (self._failure or self._given_up.is_set())
        return exit_code_of(self._child) is None

    @property
    def waits(self) -> Words | None:
        """Leftovers that keep the process from its start, in words; None once it has started or cannot be started."""
        return None if self._failure or self._child is not None else _leftover_words(self._slot)

    def exit_code(self) -> int | None:
        """Returns the exit code, `NOT_STARTED` after a failed start, None before the end; the slot's leftovers are
        ended before collection.
        """
        if self._child is None:
            return NOT_STARTED if self._failure else UNKNOWN_EXIT if self._given_up.is_set() else None
        # The child ended, but was not collected yet: the number is still reserved, so leftovers can be identified and
        # ended first.
        if (code := exit_code_of(self._child)) is not None and self._child.returncode is None:
            self._slot.end_leftovers()
        return code

    def terminate(self) -> None:
        """Sends SIGTERM to the process; a process not yet started never starts."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL to the process; a process not yet started never starts."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Gives the process up for good, and sends it the signal if it was started."""
        self._given_up.set()
        if self._child is not None:
            _signal_child(self._child, number)

    def _start_when_free(self) -> None:
        """Starts the process once the slot is free; the body of a thread."""
        try:
            child = self._slot.start(self._spawn, self._given_up)
        except OSError as error:
            self._failure = f"cannot start the {self._role}: {error}"
            return
        except WorkError as error:
            self._failure = f"cannot start the {self._role}: {error.what}; {error.fix}"
            return
        self._child = child
        if child is not None and self._given_up.is_set():  # given up during its start
            _signal_child(child, signal.SIGKILL)


def _signal_child(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signals a child, whose number stays reserved until collection.

    Never the group, not even to kill: grandchildren are ended when the slot is cleaned, and their shared memory is
    removed by a tracker, which must outlive the others.
    """
    if exit_code_of(child) is None:
        with suppress(OSError):
            os.kill(child.pid, number)


class AdoptedProcess:
    """Handle of a worker process started by an earlier daemon, identified by pid and start time, because pids are
    reused.
    """

    waits = None
    """None, because the process runs and waits for nothing."""
    reason = ""
    """No reason: the exit status of another process's child is unknown."""

    def __init__(self, slot: LocalSlot, process: psutil.Process) -> None:
        """`process` is the process of the slot's worker."""
        self._slot = slot
        self._process = process
        self._cleanup_begun = False
        """True once the slot's leftovers are being ended."""

    @property
    def pid(self) -> int | None:
        """Process id of the worker on this machine, as recorded at the adoption."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the process has ended, or once its pid belongs to another process."""
        return lives(self._process)

    def exit_code(self) -> int | None:
        """Returns None while the process runs, then `UNKNOWN_EXIT`; after the end, the slot's leftovers are ended."""
        if lives(self._process):
            return None
        if not self._cleanup_begun:
            self._cleanup_begun = True
            self._slot.end_leftovers()
        return UNKNOWN_EXIT

    def terminate(self) -> None:
        """Sends SIGTERM to the process, if it still runs; see `Handle.terminate`."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL to the process, if it still runs; see `Handle.kill`."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Grandchildren are ended when the slot is cleaned: the number of a group is less reliable than that of a child.
        """Signals the process, if it still runs."""
        if lives(self._process):
            with suppress(psutil.Error):
                self._process.send_signal(number)


class DeclinedProcess:
    """Handle of a worker run by another launcher (Ray), reported as ended: the daemon declares the worker lost, and the
    worker then leaves by itself.
    """

    pid = None
    """None, because this launcher has no process for the worker."""
    waits = None
    """None, because the worker counts as ended and waits for nothing."""
    reason = "Ray runs it, and this daemon starts workers itself: another worker replaces it, and it leaves"
    """Why the worker counts as lost."""

    def exit_code(self) -> int | None:
        """Returns an end with unknown status."""
        return UNKNOWN_EXIT

    def terminate(self) -> None:
        """Does nothing: the worker leaves by itself."""
        return

    def kill(self) -> None:
        """Does nothing: the worker leaves by itself."""
        return


class LeftoverTermination:
    """Handle of the termination of a slot's leftover processes, ended once none run; signals have no effect."""

    pid = None
    """None, because the termination itself has no process."""
    reason = ""
    """Empty, because the termination cannot fail."""

    def __init__(self, slot: LocalSlot) -> None:
        """Begins to end the leftovers of the slot."""
        self._slot = slot
        self._thread = slot.end_leftovers()
        """Thread ending the leftovers."""

    @property
    def waits(self) -> Words | None:
        """Returns the leftovers still running, in words."""
        return _leftover_words(self._slot)

    def exit_code(self) -> int | None:
        """Returns 0 once no leftover runs; None before."""
        return None if self._thread.is_alive() else 0

    def terminate(self) -> None:
        """Does nothing."""
        return

    def kill(self) -> None:
        """Does nothing."""
        return


def _leftover_words(slot: LocalSlot) -> Words | None:
    """Returns the wait for a slot's leftovers in words; None without leftovers."""
    if not slot.remaining:
        return None
    ends = (
        f"they end: SIGTERM was sent, SIGKILL follows after {limits.LEFTOVER_GRACE_S:g} s; a process that survives "
        "both hangs in the operating system: see ps"
    )
    waiting_for = f"leftover processes of the previous worker to end: {slot.remaining}"
    return Words("leftovers", waiting_for, "those processes", ends, Level.STUCK)


class LocalExecutor:
    """Starts `rftd worker ROLE` as local processes; implements `Executor`, `OpeningExecutor`."""

    def __init__(
        self,
        log_url: str,
        *,
        home: str = "",
        command: Sequence[str] = (sys.executable, "-P", "-m", "rftd.daemon"),
        host: Callable[[], Host] = find_host,
        environment: WorkerEnvironment | None = None,
        traces: TraceOptions | None = None,
        folders: FolderAccess = FolderAccess.PRIVATE,
    ) -> None:
        """`home` is the daemon's folder, used by one daemon at a time: it marks the workers, for the next daemon to
        find. `command` is the start of a worker's command line.

        `host` lists the machine's devices, and is called once. `environment` builds the workers' variables from the
        daemon's; by default only the variables needed by any worker. Workers export spans according to `traces`, and
        create files with the permissions of `folders`.
        """
        self._log_url = log_url
        self._home = os.path.realpath(home) if home else log_url
        self._command = tuple(command)
        self._this_process = this_process()
        self._slots: dict[str, LocalSlot] = {}
        self._look = host
        self._environment = environment or WorkerEnvironment()
        self._traces = () if traces is None else ("--traces", traces.url, "--trace-ratio", str(traces.ratio))
        self._folders = () if folders is FolderAccess.PRIVATE else ("--folders", folders.value)
        self._looking = threading.Lock()
        self._host: Host | None = None
        self._workers: dict[str, OrderedProcess | AdoptedProcess] = {}
        """The newest worker of each slot, by its mark."""
        self._declined: set[UUID] = set()
        """Live workers run by another launcher."""
        self._allotment = Allotment(self._lives_in)

    def host(self) -> Host:
        """Returns the machine with its devices, found once; the installed packages are read at each call."""
        with self._looking:
            if self._host is None:
                self._host = self._look()
            # An engine may have been installed since, and reading metadata is cheap; devices do not change.
            if not self._host.seen:
                return self._host
            return msgspec.structs.replace(self._host, packages=installed_packages())

    def _lives_in(self, mark: str) -> bool:
        """True if a worker of this launcher runs in the slot."""
        worker = self._workers.get(mark)
        return worker is not None and worker.alive

    def start(self, order: WorkerOrder) -> Handle:
        """Orders a process for the worker, started by a thread once the slot is free, and returns its handle."""
        arguments = [*self._command, "worker", order.role, "--log", self._log_url]
        arguments += [
            "--experiment",
            str(order.experiment),
            "--worker",
            str(order.worker),
            *self._traces,
            *self._folders,
            *("--log-level", order.log_level.lower()),
        ]
        if order.spine_offset:
            arguments += ["--spine-offset", str(order.spine_offset)]
        if order.slot >= 0:
            arguments += ["--slot", str(order.slot)]
        slot = self._slot(order)
        threads = str(threads_of(order.threads))
        # Before the worker starts: OpenMP reads the number of threads once, when loaded.
        environment = self._environment.of(order)
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, MARK: slot.mark}
        environment.setdefault("TOKENIZERS_PARALLELISM", "false")
        # The package setproctitle, used by inference engines to name processes, writes the title over the environment,
        # and so over the mark, unless SPT_NOENV is set.
        environment["SPT_NOENV"] = "1"

        def spawn() -> subprocess.Popen[bytes]:
            # Here, on a thread: the driver may take seconds to answer.
            if order.devices and (gpus := self.host().gpus):
                assigned = self._allotment.give(slot.mark, order.devices, gpus)
                environment[VISIBLE] = ",".join(gpu.visible for gpu in assigned)
                # By default the driver numbers devices by speed, but nvidia-smi by bus.
                environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            return start_process(arguments, order.log_path, environment)

        worker = self._workers[slot.mark] = OrderedProcess(slot, order.role, spawn)
        return worker

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        """Returns the handle of an earlier daemon's process on this machine; None without one. A worker of Ray is
        declined.
        """
        if not self._this_process.sees(started):
            return None
        process = _process_of(started)
        if process is None:
            return None
        if _is_rays(_environ_of(process).get(MARK, "")):
            # Not adopted by pid: ending the process that way would leave reservations in Ray for ever.
            self._declined.add(started.worker)
            return DeclinedProcess()
        # Anyone with write access to rftd.workers may name any process of the user, to be ended as a worker.
        if not self._slot(order).was_started(process):
            return None
        return self._adopted(order, process)

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        """Begins one search, shared by all orders, for the processes started by an earlier daemon."""
        search = LocalSearch({self._slot(order).mark: order for order in orders}, self._adopted)
        return [search] * len(orders)

    def _adopted(self, order: WorkerOrder, process: psutil.Process) -> AdoptedProcess:
        """Returns a handle of a running process in the order's slot."""
        slot = self._slot(order)
        if order.devices:
            self._allotment.note(slot.mark, _environ_of(process).get(VISIBLE, ""))
        worker = self._workers[slot.mark] = AdoptedProcess(slot, process)
        return worker

    def lives(self, started: WorkerStarted) -> bool | None:
        # A pid of another machine, or of another container, would name a foreign process here.
        """True if the worker's process runs; False for a worker of Ray. None if the pid is of another machine or
        container.
        """
        if started.worker in self._declined:
            return False
        return _process_of(started) is not None if self._this_process.sees(started) else None

    def clear(self, order: WorkerOrder) -> Handle | None:
        """Begins to end the leftovers of the order's slot, and returns the handle of their end."""
        return LeftoverTermination(self._slot(order))

    def _slot(self, order: WorkerOrder) -> LocalSlot:
        """Returns the slot of an order, created on first use."""
        mark = f"{order.experiment}/{order.role}/{order.slot}@{self._home}"
        return self._slots.setdefault(mark, LocalSlot(mark, order.log_path))


def _process_of(started: WorkerStarted) -> psutil.Process | None:
    """Returns the live process of a worker, by pid and start time; None if there is none."""
    try:
        process = psutil.Process(started.pid)
        same = abs(process.create_time() - started.process_start_s) <= _SAME_START_S
    except psutil.Error:
        return None
    return process if same and lives(process) else None


def _environ_of(process: psutil.Process) -> dict[str, str]:
    """Returns the environment of a process; empty if unreadable, or if the process has ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _is_rays(mark: str) -> bool:
    """True for the mark of a worker started by a launcher without a folder, for example Ray's."""
    return bool(mark) and "@" not in mark
