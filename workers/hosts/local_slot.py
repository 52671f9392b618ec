"""`LocalSlot`: a local worker slot; the next worker starts only after all leftovers have ended."""

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
from rftd.workers.hosts.leftovers import LOOK_S, Leftovers

Spawn = Callable[[], "subprocess.Popen[bytes]"]


def start_process(arguments: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a process in a separate session, with output appended to the log file."""
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
    """Ends leftovers and starts the next worker, on separate threads, one after the other."""

    def __init__(self, mark: str, log_path: Path) -> None:
        self.mark: Final = mark
        self.left = ""
        """The processes still awaited; empty if there are none."""
        self._leftovers = Leftovers(mark, log_path)
        self._children: list[subprocess.Popen[bytes]] = []
        self._turn = threading.Lock()
        self._tidying: threading.Thread | None = None

    def was_started(self, process: psutil.Process) -> bool:
        """True if the process's mark or log identify a worker of the slot."""
        return self._leftovers.was_started(process)

    def tidy(self) -> threading.Thread:
        """Begins to end leftovers, unless already in progress; the thread ends once none remain. Never blocks."""
        if self._tidying is None or not self._tidying.is_alive():
            self._tidying = threading.Thread(target=self._tidy, name="leftovers", daemon=True)
            self._tidying.start()
        return self._tidying

    def start(self, spawn: Spawn, given_up: threading.Event) -> subprocess.Popen[bytes] | None:
        """Returns the process created by `spawn`, once no leftovers remain; None if given up before. Blocks."""
        # In slices, so that an abandoned order does not wait behind slow leftovers.
        while not self._turn.acquire(timeout=LOOK_S):
            if given_up.is_set():
                return None
        try:
            if not self._cleared(given_up.wait) or given_up.is_set():
                return None
            child = spawn()
            self._children.append(child)
            self._leftovers.own.add(child.pid)
            return child
        finally:
            self._turn.release()

    def _tidy(self) -> None:
        """Ends leftovers, unless a worker runs in the slot."""
        with self._turn:
            # A running worker is no leftover: cleaning begins again after the worker's end.
            occupied = self._children and exit_code_of(self._children[-1]) is None
            if not occupied:  # no worker was started since the one whose leftovers these are
                self._cleared(threading.Event().wait)

    def _cleared(self, wait: Callable[[float], bool]) -> bool:
        """True once no leftovers remain; the numbers of ended children are released then."""
        if not self._leftovers.end(wait, self._report):
            return False
        # Collected only now: until then the numbers of children and sessions are reserved.
        for child in self._children:
            child.wait()
        self._leftovers.own.difference_update(child.pid for child in self._children)
        self._children.clear()
        return True

    def _report(self, text: str) -> None:
        self.left = text


def exit_code_of(child: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code of a child, -N for signal N; None while running. The number stays reserved until
    collection.
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
