"""A worker's child processes: ended with the worker; leftovers of dead workers are ended before the next one begins.

A daemon looks after the workers that it ordered. An unordered worker has only itself, and one whose daemon is gone for
good is no better off: an engine's processes would hold the device for ever.
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
    """The direct and indirect children of this worker. Every method blocks: call it before and after the loop."""

    def __init__(self) -> None:
        """Marks this process's future children, unless a daemon has done so."""
        self._me = this_process()
        self._mark = os.environ.setdefault(MARK, f"{_prefix(self._me)}{self._me.pid}")
        os.environ.setdefault("SPT_NOENV", "1")  # a title written over the environment would hide the mark

    def end_of_the_dead(self) -> str:
        """Ends leftovers of dead unordered workers on this machine; returns their names, or an empty text."""
        first = named(self._of_the_dead())
        end_all(self._of_the_dead, _Patience(), lambda _: None)
        return first

    def end(self) -> None:
        """Ends the children that this worker started and did not end itself."""
        end_all(self._left, _Patience(), lambda _: None)

    def _left(self) -> list[psutil.Process]:
        this = psutil.Process()
        # The mark finds those whose parent has ended, the parent those without the mark. Older ones with the mark
        # started this process.
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
        prefix, _, pid = candidate.mark.rpartition("/")
        if f"{prefix}/" != _prefix(self._me):
            return False  # ordered by a daemon; or a number of another container, which names a foreign process here
        try:
            worker = psutil.Process(int(pid))
            # A process younger than the worker's children only reuses its number.
            return worker.status() == psutil.STATUS_ZOMBIE or not _younger(candidate.process, worker)
        except psutil.NoSuchProcess:
            return True
        except (psutil.Error, ValueError):
            return False


def _prefix(name: ProcessName) -> str:
    return f"{_UNORDERED}/{name.boot_id}/{name.pid_namespace}/"


def _younger(process: psutil.Process, than: psutil.Process) -> bool:
    """True if `process` began after `than`, or at the same tick."""
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
    """Waits, and finally gives up: a process that hangs in the operating system must not block a worker."""

    def __init__(self) -> None:
        self._left_s = limits.LEFTOVER_GRACE_S + limits.KILL_TIMEOUT_S

    def __call__(self, pause_s: float) -> bool:
        threading.Event().wait(pause_s)
        self._left_s -= pause_s
        return self._left_s <= 0
