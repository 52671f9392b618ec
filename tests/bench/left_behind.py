"""What a run leaves behind: its processes, and the shared memory that they have mapped, noted while it goes on.

Processes of a run are known by a variable of their environment, which everything that this process starts inherits,
whoever its parent is by then. A cluster's own processes have it too; they are told apart by what they run.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil
from kill_record import SHARED, alive

from rftd.workers.hosts.leftovers import MARK

RUN: Final = "RFTD_BENCH_RUN"
POLL_INTERVAL_S: Final = 0.5
LOOKS: Final = 60
"""The looks at a process that is not the run's: Ray's workers begin as a script that sets their environment."""
_MAPPED: Final = re.compile(rf"{SHARED}/\S+")


class Watch:
    """Notes the processes of a run and their shared memory while the block runs; to be entered before it begins."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's: whatever names it in its command line belongs to the run."""
        self._folder = str(folder)
        self._run = secrets.token_hex(8)
        self._looks: Counter[psutil.Process] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_again, name="watch", daemon=True)
        self.processes: dict[psutil.Process, str] = {}
        """The processes that were seen, each with its command line."""
        self.segments: set[Path] = set()
        """The files of shared memory that any of them had mapped."""

    def __enter__(self) -> Self:
        os.environ[RUN] = self._run
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        os.environ.pop(RUN, None)

    def left(self, within_s: float) -> tuple[str, ...]:
        """The processes and files that are there still after so long, once the run is over; empty if none is."""
        deadline_s = time.monotonic() + within_s
        while (left := self._left()) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return left

    def _left(self) -> tuple[str, ...]:
        self._look()
        living = sorted(f"{each.pid} {command}" for each, command in self.processes.copy().items() if alive(each))
        # A folder below it counts too, with whatever it holds.
        files = {SHARED / each.relative_to(SHARED).parts[0] for each in self.segments.copy()}
        return (*living, *sorted(str(each) for each in files if each.exists()))

    def _look_again(self) -> None:
        while not self._stop.wait(POLL_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        for process in psutil.process_iter():
            try:
                if self._is_ours(process):
                    maps = Path(f"/proc/{process.pid}/maps").read_text()
                    self.segments |= {Path(each) for each in _MAPPED.findall(maps)}
            except (psutil.Error, OSError):
                continue

    def _is_ours(self, process: psutil.Process) -> bool:
        if process in self.processes:
            return True
        # Others are looked at for a while: a process has its parent's command line until it begins its own.
        if self._looks[process] == LOOKS:
            return False
        self._looks[process] += 1
        environ = process.environ()
        command = " ".join(process.cmdline())
        ours = MARK in environ or self._folder in command or "rftd." in command
        if ours and environ.get(RUN) == self._run:
            self.processes[process] = command[:200]
            return True
        return False
