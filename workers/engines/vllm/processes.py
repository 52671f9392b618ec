"""vLLM's processes: start with a time-out, names of ended processes, and end.

`EngineCore` is a child of the explorer, and the workers are children of `EngineCore`. All are in the explorer's
session, where the launcher finds them if the explorer is killed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

from rftd.ops.errors import RftdError, RolloutError, WorkError
from rftd.storage.files.shared_memory import MEMORY
from rftd.workers.devices.discovery import VISIBLE
from rftd.workers.engines.vllm.sockets import SocketFolder

T = TypeVar("T")
"""Type returned by the function that starts vLLM."""

_STARTING: Final = threading.Lock()
"""Held by the starting engine: its processes inherit the environment, which all threads share."""
GRACE_S: Final = 10.0
"""Seconds for processes to end by themselves."""
_POLL_INTERVAL_S: Final = 0.02
"""Seconds between two checks for ended processes."""
_ENVIRONMENT: Final = {
    # Nothing leaves the machine.
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # The second runner has a sampler of its own, without log-probabilities at a row's temperature.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    # The explorer has threads: a forked child could wait for ever for a lock held by one of them.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Environment variables set for vLLM, whatever their value before."""
_SEGMENT: Final = re.compile(rf"{MEMORY}/vllm_dist_[0-9a-f]+-\S+-cpushm\S*")
"""Shared-memory segment for exchanging tensors between worker processes of the CPU build, named for one start of vLLM.
"""
_DEFAULTS: Final = {"VLLM_LOGGING_LEVEL": "WARNING"}
"""Environment variables set for vLLM if unset."""


def set_environment() -> None:
    """Sets the variables read by vLLM at its import, here and in its processes; to be called before the import."""
    os.environ.update(_ENVIRONMENT)
    # Nothing may be pickled across the process border, whoever started the explorer.
    os.environ.pop("VLLM_ALLOW_INSECURE_SERIALIZATION", None)
    for name, setting in _DEFAULTS.items():
        os.environ.setdefault(name, setting)


class EngineProcesses:
    """The processes started by vLLM in this process: engine core, workers, and their children."""

    def __init__(self, sockets: SocketFolder | None = None) -> None:
        """`sockets` is the folder of the processes' sockets, removed with the processes."""
        self._sockets = sockets
        self._before: set[int | None] | None = _children()
        """Children of this process before the start; None while waiting for another engine's start."""
        self._processes: dict[int, psutil.Process] = {}
        self._needed: set[int] = set()

    async def started(self, start: Callable[[], T], timeout_s: float, *, gpus: range = range(0)) -> T:
        """Runs `start` on a thread and returns its result. Raises RolloutError if `start` fails, or takes longer than
        `timeout_s`.

        The started processes see only the GPUs with these indices among this process's; for an empty range, all.
        """
        self._before = None
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.to_thread(self._start, start, gpus)
        except TimeoutError as error:
            raise RolloutError(
                f"vLLM was not ready after {timeout_s:g} s",
                fix="raise the engine's start time-out, or see the explorer's log for the cause",
            ) from error
        except RftdError:
            raise
        except Exception as error:  # vLLM raises refusals of many classes
            reason = (
                str(error)
                if isinstance(error, ValueError | RuntimeError | OSError)
                else f"{type(error).__name__}: {error}"
            )
            raise RolloutError(f"vLLM does not start: {reason}", fix="see the explorer's log") from error

    def _start(self, start: Callable[[], T], gpus: range) -> T:
        """Calls `start` with only these GPUs visible, and records the processes started by it."""
        # One engine at a time: new children of this process belong to this engine only.
        with _STARTING, visible_gpus(gpus):
            self._before = _children()
            try:
                return start()
            finally:
                self.look()

    def look(self) -> None:
        """Records the engine's processes that exist now, with all their descendants."""
        if self._before is None:
            return
        for child in multiprocessing.active_children():
            if child.pid is None or child.pid in self._before or not child.name.startswith("EngineCore"):
                continue
            with suppress(psutil.Error):
                process = psutil.Process(child.pid)
                for descendant in (process, *process.children(recursive=True)):
                    self._processes.setdefault(descendant.pid, descendant)
                self._needed.add(child.pid)

    def need(self, workers: Iterable[int]) -> None:
        """Records which processes are workers, each necessary for drawing: `lost` becomes True when one ends.

        Other processes, such as a compiler, are temporary. All workers have opened their shared memory by now, so its
        names are removed.
        """
        self._needed.update(pid for pid in workers if pid in self._processes)
        self._remove_segments()

    @property
    def lost(self) -> bool:
        """True once a worker, or a process started directly by this one, has ended. vLLM itself reports the loss later,
        after waiting for the other processes.
        """
        return any(not _is_alive(self._processes[pid]) for pid in self._needed)

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the recorded processes, living or not."""
        return tuple(self._processes)

    def ended(self) -> list[str]:
        """Returns the ids of the recorded processes that have ended."""
        return [str(pid) for pid, process in self._processes.items() if not _is_alive(process)]

    def states(self) -> list[str]:
        """Returns pid and system state of each living process: `12 stopped`."""
        described: list[str] = []
        for pid, process in self._processes.items():
            with suppress(psutil.Error):
                if _is_alive(process):
                    described.append(f"{pid} {process.status()}")
        return described

    def end(self) -> None:
        """Terminates all recorded processes, and later kills them; blocks until all have ended."""
        # Only if the start failed: later children may belong to another engine of this process.
        if not self._processes:
            self.look()
        # The start may have failed before the names were removed.
        self._remove_segments()
        self._signal(psutil.Process.terminate)
        self.kill()
        _collect(self._processes)
        if self._sockets is not None:
            self._sockets.close()

    def kill(self) -> None:
        """Kills all recorded processes; blocks until all have ended."""
        self._signal(psutil.Process.kill)

    def _remove_segments(self) -> None:
        """Removes the names of the workers' shared memory.

        The memory has no tracker, and a killed worker leaves it for ever. Mapped memory stays mapped without a name.
        """
        for pid in self._processes:
            with suppress(OSError):  # the process has ended, or this system has no such file
                for name in set(_SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text())):
                    Path(name).unlink(missing_ok=True)

    def _signal(self, send: Callable[[psutil.Process], None]) -> None:
        """Signals every living process, and waits until all have ended, at most `GRACE_S` seconds."""
        for process in self._processes.values():
            if _is_alive(process):
                with suppress(psutil.Error):
                    send(process)
        # Not until their exit status is collected: that is each parent's task, and never happens in a container whose
        # first process collects nothing.
        patient_until_s = time.monotonic() + GRACE_S
        while any(map(_is_alive, self._processes.values())) and time.monotonic() < patient_until_s:
            time.sleep(_POLL_INTERVAL_S)


def _children() -> set[int | None]:
    """Returns the process ids of this process's children."""
    return {child.pid for child in multiprocessing.active_children()}


def _is_alive(process: psutil.Process) -> bool:
    """True if the process runs; False for an ended one whose exit status was not collected."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _collect(pids: Iterable[int]) -> None:
    """Collects the exit status of ended children, so that none stays a zombie."""
    process_ids = set(pids)
    children: list[Any] = multiprocessing.active_children()  # also collects
    for child in children:
        if child.pid in process_ids:
            child.join(GRACE_S)


@contextmanager
def visible_gpus(numbers: range) -> Iterator[None]:
    """Shows processes started in the block only the GPUs with these indices among this process's; without indices, all.

    The environment belongs to the whole process, so blocks must not overlap. Raises WorkError if this process has fewer
    GPUs.
    """
    if not numbers:
        yield
        return
    before = os.environ.get(VISIBLE)
    # A process without assigned GPUs sees all, numbered from 0 by the driver.
    words = [str(number) for number in range(numbers.stop)] if before is None else before.split(",")
    if len(words) < numbers.stop:
        raise WorkError(
            f"the engine is to compute on GPU {numbers.stop} of its explorer, and {VISIBLE} is {before!r}",
            fix="give the explorer enough GPUs for all its engines, or let the daemon start it",
        )
    os.environ[VISIBLE] = ",".join(words[numbers.start : numbers.stop])
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before
