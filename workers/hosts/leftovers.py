"""Leftover processes of a worker slot: found by three signs, and ended before the slot's next worker starts.

An engine's own processes survive a killed worker, and keep device memory, ports and host memory occupied. The three
signs are: the variable `RFTD_WORKER` in the process's environment, unless replaced or overwritten by a process title;
the worker's session, unless the process created a new session; and the worker's log file as output, unless redirected.
The parent pid is no sign: an orphaned child belongs to init. Only Linux tells where a process writes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from rftd.ops import limits

MARK: Final = "RFTD_WORKER"
"""The environment variable with a process's slot and the folder of the daemon that started it."""
POLL_INTERVAL_S: Final = 0.05
"""Seconds between two checks for remaining leftover processes."""
_MAX_NAMED: Final = 8
"""Maximum number of processes named in a text."""


class Seen(NamedTuple):
    """A process found on the machine, with its session and the worker slot named in its environment."""

    process: psutil.Process
    """Process with the session and the slot mark."""
    session: int
    """Id of the process's session."""
    mark: str
    """The value of `RFTD_WORKER` in its environment; empty if absent, unreadable, or overwritten."""


class Leftovers:
    """The running processes of a slot's earlier workers. Every method blocks for milliseconds, so none fits the event
    loop.
    """

    def __init__(self, mark: str, log_path: Path) -> None:
        """`mark` identifies the slot in environments; `log_path` is the log file to which the slot's workers write."""
        self._mark = mark
        self._log_path = log_path
        self.own: set[int] = set()
        """Process ids, and so session ids, of this process's children whose exit status has not been collected; a
        collected number may be reused.
        """

    def processes(self) -> list[psutil.Process]:
        """Returns the running processes with a sign of the slot, whichever launcher started them; without zombies,
        which hold only a pid.
        """
        running = list(visible())
        marked = {entry_process.session for entry_process in running if entry_process.mark == self._mark}
        # Never the daemon's own session: a daemon started in a worker's session would end itself.
        sessions = (marked | self.own) - {os.getsid(0)}
        return [entry_process.process for entry_process in running if self._is_left(entry_process, sessions)]

    def _is_left(self, candidate: Seen, sessions: set[int]) -> bool:
        """True if a process belongs to the slot, by mark, session or log."""
        if candidate.mark == self._mark or candidate.session in sessions:
            return True
        # Only workers of the slot write to the log; a worker of another slot may have the same file open.
        return not candidate.mark and self._writes_to_log(candidate.process.pid)

    def was_started(self, process: psutil.Process) -> bool:
        """True if environment or output file identify the process as a worker of the slot; pids recorded in the log are
        not consulted.

        The daemon's folder in the mark is ignored: two daemons sharing a log take over each other's workers.
        """
        try:
            mark = process.environ().get(MARK, "")
        except psutil.Error:
            mark = ""
        return _worker_in(mark) == _worker_in(self._mark) or (not mark and self._writes_to_log(process.pid))

    def _writes_to_log(self, pid: int) -> bool:
        """True if standard output or standard error is the slot's log; False where the system does not tell."""
        with suppress(OSError):
            log_status = os.stat(self._log_path)
            return any(os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), log_status) for number in (1, 2))
        return False

    def end(self, wait: Callable[[float], bool], report: Callable[[str], None]) -> bool:
        """Terminates, then kills the slot's leftover processes; returns True once none run, False as soon as
        `wait(seconds)` returns True.

        `report` receives pid and name of the remaining processes, and an empty text at the end.
        """
        return end_all(self.processes, wait, report)


def end_all(
    find: Callable[[], list[psutil.Process]], wait: Callable[[float], bool], report: Callable[[str], None]
) -> bool:
    """Sends SIGTERM, later SIGKILL, to every process returned by `find`; returns True once `find` returns none, False
    as soon as `wait(seconds)` returns True.

    multiprocessing's resource trackers are ended last. `report` receives pid and name of the remaining processes, and
    an empty text at the end.
    """
    kill_at_s = 0.0
    asking: bool | None = None
    # Searching all processes takes seconds on a busy machine: only processes already found are checked often.
    while remaining := find():
        workers = [process for process in remaining if not is_tracker(process)]
        if asking is not bool(workers):
            # A tracker removes the shared memory of killed processes, and ends unprompted: no signal is sent, and the
            # grace time is equal.
            asking = bool(workers)
            kill_at_s = time.monotonic() + limits.LEFTOVER_GRACE_S
        # SIGTERM first: a terminated engine frees device and sockets.
        _send_signal(workers, signal.SIGTERM)
        while living := [process for process in workers or remaining if lives(process)]:
            report(named(living))
            if time.monotonic() >= kill_at_s:
                _send_signal(living, signal.SIGKILL)
            if wait(POLL_INTERVAL_S):
                return False
    report("")
    return True


def _send_signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Sends a signal to processes; a process that has ended is skipped."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def lives(process: psutil.Process) -> bool:
    """True while a process runs; False once ended, even if a zombie remains."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_tracker(process: psutil.Process) -> bool:
    """True for multiprocessing's resource tracker: a process that removes shared memory of its clients, ends after
    them, and ignores SIGTERM.
    """
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def named(processes: list[psutil.Process]) -> str:
    """Describes the processes in a bounded text: pid and name of each."""
    texts = [f"{process.pid} ({_process_name(process)})" for process in processes[:_MAX_NAMED]]
    more = f" and {len(processes) - _MAX_NAMED} more" if len(processes) > _MAX_NAMED else ""
    return ", ".join(texts) + more


def _process_name(process: psutil.Process) -> str:
    """Returns the name of a process; `ended` if the process does not run any more."""
    try:
        return process.name()
    except psutil.Error:
        return "ended"


def visible() -> Iterator[Seen]:
    """Yields all processes except the calling process and zombies; none if /proc belongs to another PID namespace."""
    # With a /proc of another namespace, pids would name foreign processes: no process is better than a wrong process.
    if _foreign_proc():
        return
    me = os.getpid()
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            # A zombie holds nothing but a number, to be collected by the parent only.
            if pid != me and process.status() != psutil.STATUS_ZOMBIE:
                yield Seen(process, os.getsid(pid), _mark_of(process))
        except (psutil.Error, OSError):  # it ended meanwhile
            continue


def _worker_in(mark: str) -> str:
    """Returns the experiment, role and slot in a mark, without the daemon's folder."""
    return mark.partition("@")[0]


def _mark_of(process: psutil.Process) -> str:
    """Returns the mark in a process's environment; empty if unreadable."""
    try:
        return str(process.environ().get(MARK, ""))
    except psutil.AccessDenied:  # a process of another user
        return ""


def _foreign_proc() -> bool:
    """True if /proc belongs to another PID namespace."""
    try:
        return os.readlink("/proc/self") != str(os.getpid())
    except OSError:
        return False  # no such file outside of Linux
