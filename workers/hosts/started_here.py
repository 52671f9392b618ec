"""A worker's child processes: ended with the worker; child processes of dead workers are ended before the next worker
begins.

A daemon ends the child processes of workers started by itself. A worker started by hand has no daemon, nor has a worker
whose daemon ended for good: an engine's processes would occupy the device for ever.
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
"""First word of the mark in the environment of a worker started without a daemon; the rest of the mark names its
process.
"""


class StartedHere:
    """The direct and indirect child processes of the calling worker. Every method blocks: to be called before and after
    the event loop.
    """

    def __init__(self) -> None:
        """Marks future child processes by an environment variable, unless a daemon has set it already."""
        self._this_process = this_process()
        """Name of this process."""
        self._mark = os.environ.setdefault(MARK, f"{_mark_prefix(self._this_process)}{self._this_process.pid}")
        """Mark in the environment of this process and its children."""
        os.environ.setdefault("SPT_NOENV", "1")  # a title written over the environment would hide the mark

    def end_leftovers_of_dead(self) -> str:
        """Ends child processes of dead workers of this machine that had no daemon; returns pid and name of each, or an
        empty text.
        """
        first = named(self._leftovers_of_dead())
        end_all(self._leftovers_of_dead, _BoundedWait(), lambda _: None)
        return first

    def end(self) -> None:
        """Ends the remaining child processes of this worker, except multiprocessing's resource trackers."""
        end_all(self._children, _BoundedWait(), lambda _: None)

    def _children(self) -> list[psutil.Process]:
        """Returns the live children of this worker, except trackers."""
        this = psutil.Process()
        # The mark finds orphans, the parent finds children without the mark. Older marked processes are ancestors.
        marked = [
            candidate.process
            for candidate in visible()
            if candidate.mark == self._mark and _began_after(candidate.process, this)
        ]
        children = [child for child in this.children(recursive=True) if child not in marked]
        return [process for process in (*marked, *children) if not _ends_by_itself(process)]

    def _leftovers_of_dead(self) -> list[psutil.Process]:
        """Returns the running child processes of dead workers without a daemon."""
        return [candidate.process for candidate in visible() if self._is_leftover_of_dead(candidate)]

    def _is_leftover_of_dead(self, candidate: Seen) -> bool:
        """True if a process was started by a worker without a daemon, and that worker is dead."""
        prefix, _, pid = candidate.mark.rpartition("/")
        if f"{prefix}/" != _mark_prefix(self._this_process):
            return False  # ordered by a daemon; or a number of another container, which names a foreign process here
        try:
            worker = psutil.Process(int(pid))
            # A process younger than the worker's children only reuses a number.
            return worker.status() == psutil.STATUS_ZOMBIE or not _began_after(candidate.process, worker)
        except psutil.NoSuchProcess:
            return True
        except (psutil.Error, ValueError):
            return False


def _mark_prefix(name: ProcessName) -> str:
    """Returns the beginning of marks of this boot and PID namespace."""
    return f"{_UNORDERED}/{name.boot_id}/{name.pid_namespace}/"


def _began_after(process: psutil.Process, than: psutil.Process) -> bool:
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


class _BoundedWait:
    """Sleeps, and returns True once the total time is used up: a process hanging in the operating system must not block
    a worker.
    """

    def __init__(self) -> None:
        self._left_s = limits.LEFTOVER_GRACE_S + limits.KILL_TIMEOUT_S
        """Remaining seconds of all waits together."""

    def __call__(self, pause_s: float) -> bool:
        threading.Event().wait(pause_s)
        self._left_s -= pause_s
        return self._left_s <= 0
