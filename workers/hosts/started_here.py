"""A worker's child processes: ended with the worker; leftovers of dead workers are ended before the next worker begins.

A daemon looks after ordered workers. An unordered worker is alone, and so is a worker after the daemon's final end: an
engine's processes would hold the device for ever.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import psutil

from rftd.ops import limits
from rftd.workers.hosts.leftovers import MARK, Seen, end_all, is_tracker, named, visible
from rftd.workers.hosts.membership import ProcessName, this_process

_UNORDERED: Final = "unordered"
"""The beginning of the mark of an unordered worker; the rest names its process."""


class StartedHere:
    """The worker's direct and indirect children. Every method blocks: to be called before and after the loop."""

    def __init__(self) -> None:
        """Marks the process's future children, unless a daemon has done so."""
        self._me = this_process()
        self._mark = os.environ.setdefault(MARK, f"{_prefix(self._me)}{self._me.pid}")
        os.environ.setdefault("SPT_NOENV", "1")  # a title written over the environment would hide the mark

    def end_of_the_dead(self) -> str:
        """Ends local leftovers of dead unordered workers; returns the names, or an empty text."""
        first = named(self._of_the_dead())
        end_all(self._of_the_dead, _Patience(), lambda _: None)
        return first

    def end(self) -> None:
        """Ends the remaining children of the worker."""
        end_all(self._left, _Patience(), lambda _: None)

    def _left(self) -> list[psutil.Process]:
        """Returns the live children of this worker, except trackers."""
        this = psutil.Process()
        # The mark finds orphans, the parent finds children without the mark. Older marked processes are ancestors.
        marked = [
            candidate.process
            for candidate in visible()
            if candidate.mark == self._mark and _younger(candidate.process, this)
        ]
        children = [child for child in this.children(recursive=True) if child not in marked]
        return [process for process in (*marked, *children) if not _ends_by_itself(process)]

    def _of_the_dead(self) -> list[psutil.Process]:
        return [candidate.process for candidate in visible() if self._is_of_the_dead(candidate)]

    def _is_of_the_dead(self, candidate: Seen) -> bool:
        """True if a process was left by a dead unordered worker."""
        prefix, _, pid = candidate.mark.rpartition("/")
        if f"{prefix}/" != _prefix(self._me):
            return False  # ordered by a daemon; or a number of another container, which names a foreign process here
        try:
            worker = psutil.Process(int(pid))
            # A process younger than the worker's children only reuses a number.
            return worker.status() == psutil.STATUS_ZOMBIE or not _younger(candidate.process, worker)
        except psutil.NoSuchProcess:
            return True
        except (psutil.Error, ValueError):
            return False


def _prefix(name: ProcessName) -> str:
    return f"{_UNORDERED}/{name.boot_id}/{name.pid_namespace}/"


def _younger(process: psutil.Process, than: psutil.Process) -> bool:
    """True if `process` began after `than`, or at an equal tick."""
    try:
        return process.create_time() >= than.create_time()
    except psutil.Error:
        return False


def _ends_by_itself(process: psutil.Process) -> bool:
    """True for a zombie, and for a tracker of shared memory."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE or is_tracker(process)
    except psutil.Error:
        return True


class _Patience:
    """Waits, and finally gives up: a process hanging in the operating system must not block a worker."""

    def __init__(self) -> None:
        self._left_s = limits.LEFTOVER_GRACE_S + limits.KILL_TIMEOUT_S

    def __call__(self, pause_s: float) -> bool:
        threading.Event().wait(pause_s)
        self._left_s -= pause_s
        return self._left_s <= 0
