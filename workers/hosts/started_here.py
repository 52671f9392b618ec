"""What a worker process started: ended as the worker ends; and what dead ones left, before the next one begins.

A daemon looks after the workers that it ordered. One that nobody ordered has only itself, and one whose daemon is gone
for good is no better off: an engine's processes would hold the device for ever.
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
"""The beginning of the mark of a worker that no daemon ordered; the rest names its process."""


class StartedHere:
    """The processes that this worker starts, directly or not. All of it blocks: call it before and after the loop."""

    def __init__(self) -> None:
        """Marks this process's children-to-be, unless a daemon has done so."""
        self._me = this_process()
        self._mark = os.environ.setdefault(MARK, f"{_prefix(self._me)}{self._me.pid}")
        os.environ.setdefault("SPT_NOENV", "1")  # a title that is written over the environment would hide the mark

    def end_of_the_dead(self) -> str:
        """Ends what workers that nobody ordered left on this machine when they died; returns its names, or nothing."""
        first = named(self._of_the_dead())
        end_all(self._of_the_dead, _Patience(), lambda _: None)
        return first

    def end(self) -> None:
        """Ends what this worker started and did not end itself."""
        end_all(self._left, _Patience(), lambda _: None)

    def _left(self) -> list[psutil.Process]:
        me = psutil.Process()
        # The mark finds those whose parent has ended, the parents those without the mark. Older ones with the mark are
        # whoever started this process.
        marked = [each.process for each in visible() if each.mark == self._mark and _younger(each.process, me)]
        children = [each for each in me.children(recursive=True) if each not in marked]
        return [each for each in (*marked, *children) if not _ends_by_itself(each)]

    def _of_the_dead(self) -> list[psutil.Process]:
        return [each.process for each in visible() if self._is_of_the_dead(each)]

    def _is_of_the_dead(self, seen: Seen) -> bool:
        prefix, _, pid = seen.mark.rpartition("/")
        if f"{prefix}/" != _prefix(self._me):
            return False  # ordered by a daemon; or a number of another container's, which names somebody else here
        try:
            worker = psutil.Process(int(pid))
            # Whoever is younger than what the worker started only has its number.
            return worker.status() == psutil.STATUS_ZOMBIE or not _younger(seen.process, worker)
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
    """True of a zombie, and of a tracker of shared memory."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE or is_tracker(process)
    except psutil.Error:
        return True


class _Patience:
    """Waits, and gives up in the end: a process that hangs in the operating system must not keep a worker."""

    def __init__(self) -> None:
        self._left_s = limits.LEFTOVER_GRACE_S + limits.KILL_TIMEOUT_S

    def __call__(self, pause_s: float) -> bool:
        threading.Event().wait(pause_s)
        self._left_s -= pause_s
        return self._left_s <= 0
