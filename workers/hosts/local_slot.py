"""`LocalSlot`: a worker slot on this machine; the next worker starts only after all processes of the previous worker
have ended.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from rftd.ops.durable import make_durable_folder
from rftd.workers.hosts.executor import UNKNOWN_EXIT
from rftd.workers.hosts.leftovers import POLL_INTERVAL_S, Leftovers

Spawn = Callable[[], "subprocess.Popen[bytes]"]
"""Function creating the process of a worker."""


def start_process(arguments: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a process in a separate session, its output and errors appended to the log file. Raises OSError."""
    make_durable_folder(log_path.parent)  # the job's folder may not exist yet
    # Appended: earlier processes of the slot wrote there, and the last lines of the predecessor explain the new start.
    with log_path.open("ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )


class LocalSlot:
    """A slot for one local worker at a time: ends the previous worker's processes, then starts the next worker.

    Both happen on threads, one at a time. "Leftovers" are processes started by earlier workers of the slot and still
    running.
    """

    def __init__(self, mark: str, log_path: Path) -> None:
        """`mark` identifies the slot; `log_path` is the log file to which the slot's workers write."""
        self.mark: Final = mark
        self.remaining = ""
        """Pid and name of each leftover process still running, in a bounded text; empty while none is awaited."""
        self._leftovers = Leftovers(mark, log_path)
        """Processes of earlier workers."""
        self._children: list[subprocess.Popen[bytes]] = []
        """Children of this process in the slot, not collected yet."""
        self._turn = threading.Lock()
        """Held while leftovers are ended or a worker is started."""
        self._cleanup: threading.Thread | None = None
        """Thread ending leftovers; None before the first."""

    def was_started(self, process: psutil.Process) -> bool:
        """True if the process's environment or its output file identify it as a worker of this slot."""
        return self._leftovers.was_started(process)

    def end_leftovers(self) -> threading.Thread:
        """Begins to terminate the slot's leftover processes on a thread; returns the thread, which ends once none run.
        Never blocks.

        Without effect while the thread of an earlier call runs.
        """
        if self._cleanup is None or not self._cleanup.is_alive():
            self._cleanup = threading.Thread(target=self._end_leftovers, name="leftovers", daemon=True)
            self._cleanup.start()
        return self._cleanup

    def start(self, spawn: Spawn, given_up: threading.Event) -> subprocess.Popen[bytes] | None:
        """Blocks until no leftover process runs, then returns the process created by `spawn`; None once `given_up` is
        set.
        """
        # In slices, so that an abandoned order does not wait behind slow leftovers.
        while not self._turn.acquire(timeout=POLL_INTERVAL_S):
            if given_up.is_set():
                return None
        try:
            if not self._end_and_collect(given_up.wait) or given_up.is_set():
                return None
            child = spawn()
            self._children.append(child)
            self._leftovers.own.add(child.pid)
            return child
        finally:
            self._turn.release()

    def _end_leftovers(self) -> None:
        """Ends leftovers, unless the slot's newest worker is still running."""
        with self._turn:
            # A running worker is no leftover: cleaning begins again after the worker's end.
            occupied = self._children and exit_code_of(self._children[-1]) is None
            if not occupied:  # no worker was started since the one whose leftovers these are
                self._end_and_collect(threading.Event().wait)

    def _end_and_collect(self, wait: Callable[[float], bool]) -> bool:
        """Terminates all leftovers and collects the exit statuses of ended children; False if `wait(seconds)` returned
        True, to give up.
        """
        if not self._leftovers.end(wait, self._set_remaining):
            return False
        # Collected only now: until then the numbers of children and sessions are reserved.
        for child in self._children:
            child.wait()
        self._leftovers.own.difference_update(child.pid for child in self._children)
        self._children.clear()
        return True

    def _set_remaining(self, text: str) -> None:
        """Sets `remaining`."""
        self.remaining = text


def exit_code_of(child: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code of a child without collecting it: None while running, -N after signal N, `UNKNOWN_EXIT` if
    collected by other code.

    The pid of the uncollected child stays reserved, so that leftovers can be identified by it.
    """
    if child.returncode is not None:
        return child.returncode
    if not hasattr(os, "waitid"):
        return child.poll()
    try:
        # WNOWAIT: the child stays a zombie with a reserved number until all leftovers have ended.
        status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return UNKNOWN_EXIT  # the status was collected by another part of this process
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
