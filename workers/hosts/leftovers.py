"""Processes of one place, found by three signs, and ended before the next one starts.

An engine's own processes outlive a worker that is killed, and hold its device, its ports and its memory. They have a
mark in their environment unless they were given another one or wrote a title over it, they are in the worker's session
unless they made one of their own, and they write to the worker's log unless their output was sent elsewhere. Who their
parent is says nothing: a child whose parent has ended is a child of init. Only Linux tells where a process writes to.
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
"""The environment variable that says for which place, and of which daemon's folder, a process was started."""
LOOK_S: Final = 0.05
"""The pause between two looks at what is left."""
_SHOWN: Final = 8


class Seen(NamedTuple):
    """A process of this machine."""

    process: psutil.Process
    session: int
    mark: str
    """The place in its environment; empty if that does not say, may not be read, or was written over."""


class Leftovers:
    """The processes that the workers of one place may have left. All of it blocks for milliseconds: keep it off the
    loop."""

    def __init__(self, mark: str, log_path: Path) -> None:
        self._mark = mark
        self._log_path = log_path
        self.own: set[int] = set()
        """Sessions of children of this process whose status nobody has collected: nothing else has their number."""

    def processes(self) -> list[psutil.Process]:
        """The leftovers that live, whoever started them; those that ended and wait for their parent are gone."""
        every = list(visible())
        marked = {each.session for each in every if each.mark == self._mark}
        # Never this process's own session: a daemon that is started in a worker's session would end itself.
        sure = (marked | self.own) - {os.getsid(0)}
        return [each.process for each in every if self._is_left(each, sure)]

    def _is_left(self, seen: Seen, sure: set[int]) -> bool:
        if seen.mark == self._mark or seen.session in sure:
            return True
        # Nobody but the workers of this place writes to its log; one of another place may have the same one open.
        return not seen.mark and self._writes_our_log(seen.process.pid)

    def was_started(self, process: psutil.Process) -> bool:
        """True if the process itself shows that it is a worker of the place, whatever a record says of its pid.

        The daemon that started it may have had another folder: two that share a log take over each other's workers.
        """
        try:
            mark = process.environ().get(MARK, "")
        except psutil.Error:
            mark = ""
        return _worker_in(mark) == _worker_in(self._mark) or (not mark and self._writes_our_log(process.pid))

    def _writes_our_log(self, pid: int) -> bool:
        """True if standard output or standard error is the place's log; False where the system does not tell."""
        with suppress(OSError):
            wanted = os.stat(self._log_path)
            return any(os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), wanted) for number in (1, 2))
        return False

    def end(self, wait: Callable[[float], bool], say: Callable[[str], None]) -> bool:
        """Asks each to end, then kills it; True once none is left. `wait` waits, and says whether to give up.

        `say` is told what is there still.
        """
        return end_all(self.processes, wait, say)


def end_all(
    find: Callable[[], list[psutil.Process]], wait: Callable[[float], bool], say: Callable[[str], None]
) -> bool:
    """Asks each process that `find` finds to end, then kills it; True once none is left, False if `wait` says so.

    A tracker of shared memory comes last. `say` is told what is there still.
    """
    kill_at_s = 0.0
    asking: bool | None = None
    # To look through all processes costs seconds on a busy machine: only those that were found are looked at often.
    while left := find():
        others = [process for process in left if not is_tracker(process)]
        if asking is not bool(others):
            # A tracker removes what those that were killed held in shared memory, and ends by itself: it is not asked,
            # and has as long as they had.
            asking = bool(others)
            kill_at_s = time.monotonic() + limits.LEFTOVER_GRACE_S
        # SIGTERM first: an engine that is asked frees its device and its sockets.
        _send(others, signal.SIGTERM)
        while living := [process for process in others or left if lives(process)]:
            say(named(living))
            if time.monotonic() >= kill_at_s:
                _send(living, signal.SIGKILL)
            if wait(LOOK_S):
                return False
    say("")
    return True


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def lives(process: psutil.Process) -> bool:
    """False once it has ended, whether or not its status was collected."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_tracker(process: psutil.Process) -> bool:
    """True of multiprocessing's tracker: it cleans up behind those that use it, ends after them, and is deaf."""
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def named(processes: list[psutil.Process]) -> str:
    """The processes as one bounded text: pid and name of each."""
    texts = [f"{process.pid} ({_name(process)})" for process in processes[:_SHOWN]]
    more = f" and {len(processes) - _SHOWN} more" if len(processes) > _SHOWN else ""
    return ", ".join(texts) + more


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "ended"


def visible() -> Iterator[Seen]:
    """Every process but this one; none where /proc is that of another PID namespace."""
    # With a /proc of another namespace pids would name strangers: none is better than the wrong one.
    if _foreign_proc():
        return
    me = os.getpid()
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            # A zombie holds nothing but its number, and only its parent can collect it.
            if pid != me and process.status() != psutil.STATUS_ZOMBIE:
                yield Seen(process, os.getsid(pid), _mark_of(process))
        except (psutil.Error, OSError):  # it ended meanwhile
            continue


def _worker_in(mark: str) -> str:
    """The experiment, role and slot that a mark names, whichever daemon's folder stands behind them."""
    return mark.partition("@")[0]


def _mark_of(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(MARK, ""))
    except psutil.AccessDenied:  # another user's
        return ""


def _foreign_proc() -> bool:
    try:
        return os.readlink("/proc/self") != str(os.getpid())
    except OSError:
        return False  # there is no such file where this is no Linux
