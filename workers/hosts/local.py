"""Worker processes of this machine, each in a session of its own, so that they outlive the daemon's terminal."""

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
from rftd.workers.hosts.executor import Handle, Search, WorkerOrder
from rftd.workers.hosts.leftovers import MARK, lives
from rftd.workers.hosts.local_search import LocalSearch
from rftd.workers.hosts.membership import this_process
from rftd.workers.hosts.place import UNKNOWN, Place, Spawn, ended_with, start_process

NOT_STARTED: Final = 127
# Start times are told in ticks of the kernel, 10 ms mostly, and computed from the boot time.
_SAME_START_S: Final = 0.02


class OrderedProcess:
    """A child of this process, from its order on: a thread starts it once its place is empty."""

    def __init__(self, place: Place, role: str, spawn: Spawn) -> None:
        self._place = place
        self._role = role
        self._spawn = spawn
        self._given_up = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._failure = ""
        # On a thread: waiting for the place to be empty, and forking a large process, must not hold the daemon's loop
        # up.
        threading.Thread(target=self._start, name=f"start-{role}", daemon=True).start()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def reason(self) -> str:
        return self._failure

    @property
    def alive(self) -> bool:
        """False once it has ended, or will never be started. Unlike `exit_code` it changes nothing."""
        if self._child is None:
            return not (self._failure or self._given_up.is_set())
        return ended_with(self._child) is None

    @property
    def waits(self) -> Words | None:
        return None if self._failure or self._child is not None else _leftovers(self._place)

    def exit_code(self) -> int | None:
        if self._child is None:
            return NOT_STARTED if self._failure else UNKNOWN if self._given_up.is_set() else None
        # It ended, and was not collected yet: its number still names it, so what it left can be told and ended first.
        if (code := ended_with(self._child)) is not None and self._child.returncode is None:
            self._place.tidy()
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        self._given_up.set()
        if self._child is not None:
            _send(self._child, number)

    def _start(self) -> None:
        try:
            child = self._place.start(self._spawn, self._given_up)
        except OSError as error:
            self._failure = f"cannot start the {self._role}: {error}"
            return
        except WorkError as error:
            self._failure = f"cannot start the {self._role}: {error.what}; {error.fix}"
            return
        self._child = child
        if child is not None and self._given_up.is_set():  # while it was being started
            _send(child, signal.SIGKILL)


def _send(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signals a child. Its number is its own until somebody waits for it.

    Never its group, not even to kill it: what it started is ended when its place is tidied, and what that held in
    shared memory is removed by a tracker that must outlive it.
    """
    if ended_with(child) is None:
        with suppress(OSError):
            os.kill(child.pid, number)


class AdoptedProcess:
    """A process that an earlier daemon started; known by pid and start time, so a reused pid is not taken for it."""

    waits = None
    reason = ""

    def __init__(self, place: Place, process: psutil.Process) -> None:
        self._place = place
        self._process = process
        self._tidied = False

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once it has ended."""
        return lives(self._process)

    def exit_code(self) -> int | None:
        if lives(self._process):
            return None
        if not self._tidied:
            self._tidied = True
            self._place.tidy()
        return UNKNOWN

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # What it started is ended when its place is tidied: its group's number is not as sure as that of a child.
        if lives(self._process):
            with suppress(psutil.Error):
                self._process.send_signal(number)


class DeclinedProcess:
    """A worker that another launcher runs: ended, as far as this one goes. It leaves once it is declared lost."""

    pid = None
    waits = None
    reason = "Ray runs it, and this daemon starts workers itself: another takes its place, and it leaves"

    def exit_code(self) -> int | None:
        return UNKNOWN

    def terminate(self) -> None:
        return

    def kill(self) -> None:
        return


class Tidying:
    """The handle of what the workers of a place left behind, while it is being ended. It ends by itself."""

    pid = None
    reason = ""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._thread = place.tidy()

    @property
    def waits(self) -> Words | None:
        return _leftovers(self._place)

    def exit_code(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def terminate(self) -> None:
        return

    def kill(self) -> None:
        return


def _leftovers(place: Place) -> Words | None:
    if not place.left:
        return None
    ends = (
        f"they end: they were asked to, and are killed after {limits.LEFTOVER_GRACE_S:g} s; what does not end then "
        "hangs in the operating system, look at it with ps"
    )
    what = f"what the one before left running to end: {place.left}"
    return Words("leftovers", what, "those processes", ends, Level.STUCK)


class LocalExecutor:
    """Starts `rftd worker ROLE` as processes of this machine."""

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
        """`home` is the folder that one daemon at a time has for its own: the next one knows the workers by it.

        Workers send their spans as `traces` says, and open what they make to `folders`. `host` looks what this machine
        can give; it is asked once. `environment` builds what workers have of this process's; by default what any of
        them needs.
        """
        self._log_url = log_url
        self._home = os.path.realpath(home) if home else log_url
        self._command = tuple(command)
        self._here = this_process()
        self._places: dict[str, Place] = {}
        self._look = host
        self._environment = environment or WorkerEnvironment()
        self._traces = () if traces is None else ("--traces", traces.url, "--trace-ratio", str(traces.ratio))
        self._folders = () if folders is FolderAccess.PRIVATE else ("--folders", folders.value)
        self._looking = threading.Lock()
        self._host: Host | None = None
        self._workers: dict[str, OrderedProcess | AdoptedProcess] = {}
        """The newest worker of each place, by its mark."""
        self._declined: set[UUID] = set()
        """Workers that live and that somebody else runs."""
        self._allotment = Allotment(self._lives_in)

    def host(self) -> Host:
        with self._looking:
            if self._host is None:
                self._host = self._look()
            # An engine may have been installed since, and its metadata costs nothing; devices stay.
            if not self._host.seen:
                return self._host
            return msgspec.structs.replace(self._host, packages=installed_packages())

    def _lives_in(self, mark: str) -> bool:
        worker = self._workers.get(mark)
        return worker is not None and worker.alive

    def start(self, order: WorkerOrder) -> Handle:
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
        place = self._place(order)
        threads = str(threads_of(order.threads))
        # Before the worker starts: OpenMP reads its number of threads once, when it is loaded.
        environment = self._environment.of(order)
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, MARK: place.mark}
        environment.setdefault("TOKENIZERS_PARALLELISM", "false")
        # The package setproctitle, which inference engines name their processes with, writes the title over the
        # environment, and so over the mark, unless it is told not to.
        environment["SPT_NOENV"] = "1"

        def spawn() -> subprocess.Popen[bytes]:
            # Here, on a thread: the driver may take seconds to answer.
            if order.devices and (gpus := self.host().gpus):
                given = self._allotment.give(place.mark, order.devices, gpus)
                environment[VISIBLE] = ",".join(gpu.visible for gpu in given)
                # The driver counts by speed unless it is told otherwise, and nvidia-smi by the bus.
                environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            return start_process(arguments, order.log_path, environment)

        worker = self._workers[place.mark] = OrderedProcess(place, order.role, spawn)
        return worker

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        if not self._here.sees(started):
            return None
        process = _process_of(started)
        if process is None:
            return None
        if _is_rays(_environ_of(process).get(MARK, "")):
            # Not taken over by its pid: whoever ended it so would leave what Ray keeps for it reserved for ever.
            self._declined.add(started.worker)
            return DeclinedProcess()
        # Anybody who may write on rftd.workers may name any process of this user: it would be ended as ours.
        if not self._place(order).was_started(process):
            return None
        return self._adopted(order, process)

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        search = LocalSearch({self._place(order).mark: order for order in orders}, self._adopted)
        return [search] * len(orders)

    def _adopted(self, order: WorkerOrder, process: psutil.Process) -> AdoptedProcess:
        place = self._place(order)
        if order.devices:
            self._allotment.note(place.mark, _environ_of(process).get(VISIBLE, ""))
        worker = self._workers[place.mark] = AdoptedProcess(place, process)
        return worker

    def lives(self, started: WorkerStarted) -> bool | None:
        # A pid of another machine, or of another container, would name a stranger's process here.
        if started.worker in self._declined:
            return False
        return _process_of(started) is not None if self._here.sees(started) else None

    def clear(self, order: WorkerOrder) -> Handle | None:
        return Tidying(self._place(order))

    def _place(self, order: WorkerOrder) -> Place:
        mark = f"{order.experiment}/{order.role}/{order.slot}@{self._home}"
        return self._places.setdefault(mark, Place(mark, order.log_path))


def _process_of(started: WorkerStarted) -> psutil.Process | None:
    """The process of a worker, by pid and start time, if it lives."""
    try:
        process = psutil.Process(started.pid)
        same = abs(process.create_time() - started.process_start_s) <= _SAME_START_S
    except psutil.Error:
        return None
    return process if same and lives(process) else None


def _environ_of(process: psutil.Process) -> dict[str, str]:
    """The environment of a process; empty where that may not be read, or the process has ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _is_rays(mark: str) -> bool:
    """True for the mark of a worker that a launcher without a folder of its own started, as Ray's is."""
    return bool(mark) and "@" not in mark
