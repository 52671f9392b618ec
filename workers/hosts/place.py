"""`Place`: where one worker of an experiment runs on this machine, and the next only once nothing is left of it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from rftd.ops.durable import make_durable_folder
from rftd.workers.hosts.leftovers import LOOK_S, Leftovers

Spawn = Callable[[], "subprocess.Popen[bytes]"]

UNKNOWN: Final = -1
"""The exit code of a child whose status somebody else has collected."""


def start_process(arguments: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process in a session of its own, whose output is appended to the log file."""
    make_durable_folder(log_path.parent)  # the job's folder may not be there yet
    # Appended: earlier processes of the place wrote there, and what the last one said explains why this one starts.
    with log_path.open("ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )


class Place:
    """Ends what is left and starts what comes next, on threads of its own and one after the other."""

    def __init__(self, mark: str, log_path: Path) -> None:
        self.mark: Final = mark
        self.left = ""
        """The processes that are waited for; empty if there are none."""
        self._leftovers = Leftovers(mark, log_path)
        self._children: list[subprocess.Popen[bytes]] = []
        self._turn = threading.Lock()
        self._tidying: threading.Thread | None = None

    def was_started(self, process: psutil.Process) -> bool:
        """True if the process itself shows that it is a worker of this place."""
        return self._leftovers.was_started(process)

    def tidy(self) -> threading.Thread:
        """Begins to end what is left, unless that is under way; the thread ends when nothing is. Never blocks."""
        if self._tidying is None or not self._tidying.is_alive():
            self._tidying = threading.Thread(target=self._tidy, name="leftovers", daemon=True)
            self._tidying.start()
        return self._tidying

    def start(self, spawn: Spawn, given_up: threading.Event) -> subprocess.Popen[bytes] | None:
        """The process that `spawn` makes, once nothing is left here; None if given up on before. Blocks until then."""
        # In slices, so that an order which is given up does not wait behind leftovers that take long to end.
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
        with self._turn:
            # A worker that runs is no leftover: tidying begins again when it has ended.
            occupied = self._children and ended_with(self._children[-1]) is None
            if not occupied:  # nobody was started since the one that this is about
                self._cleared(threading.Event().wait)

    def _cleared(self, wait: Callable[[float], bool]) -> bool:
        """True once nothing is left; the numbers of the children that ended are free from then on."""
        if not self._leftovers.end(wait, self._say):
            return False
        # Collected only now: until then their numbers, and so their sessions', were nobody else's.
        for child in self._children:
            child.wait()
        self._leftovers.own.difference_update(child.pid for child in self._children)
        self._children.clear()
        return True

    def _say(self, left: str) -> None:
        self.left = left


def ended_with(child: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a child, -N for signal N; None while it runs. Its number stays taken until it is waited for."""
    if child.returncode is not None:
        return child.returncode
    if not hasattr(os, "waitid"):
        return child.poll()
    try:
        # WNOWAIT: the child stays a zombie, and its number taken, until what it left is ended.
        found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return UNKNOWN
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
