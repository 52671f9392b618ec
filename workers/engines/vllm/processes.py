"""vLLM's processes: their start with a time-out, what is said when one died, and their end.

`EngineCore` is a child of the explorer, and its workers are children of that. They are in the explorer's session, by
which the launcher finds them if the explorer is killed.
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

_STARTING: Final = threading.Lock()
"""Held by the engine that starts: its processes inherit the environment, which all threads share."""
GRACE_S: Final = 10.0
"""The time that processes have to end by themselves."""
_LOOK_S: Final = 0.02
_ENVIRONMENT: Final = {
    # Nothing leaves the machine.
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # The second runner has a sampler of its own, without log-probabilities at a row's temperature.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    # The explorer has threads: a forked child could wait for ever for a lock that one of them held.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_SEGMENT: Final = re.compile(rf"{MEMORY}/vllm_dist_[0-9a-f]+-\S+-cpushm\S*")
"""A segment through which worker processes of the CPU build exchange tensors. Its name is of one start of vLLM."""
_DEFAULTS: Final = {"VLLM_LOGGING_LEVEL": "WARNING"}


def set_environment() -> None:
    """Sets the variables that vLLM reads while it is imported, here and in its processes; call it before that."""
    os.environ.update(_ENVIRONMENT)
    # Nothing is pickled across our border, whoever started the explorer.
    os.environ.pop("VLLM_ALLOW_INSECURE_SERIALIZATION", None)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


class EngineProcesses:
    """The processes that vLLM started in this one."""

    def __init__(self, sockets: SocketFolder | None = None) -> None:
        """`sockets` is where they meet, and goes when they are ended."""
        self._sockets = sockets
        self._before: set[int | None] | None = _children()
        """The children of this process before the start; None: it waits for another engine's."""
        self._seen: dict[int, psutil.Process] = {}
        self._needed: set[int] = set()

    async def started(self, start: Callable[[], T], timeout_s: float, *, gpus: range = range(0)) -> T:
        """What `start` gives, run on a thread. Raises RolloutError if it takes longer, or fails.

        Its processes see the GPUs of this process with these numbers; of an empty range, all of them.
        """
        self._before = None
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.to_thread(self._start, start, gpus)
        except TimeoutError as error:
            raise RolloutError(
                f"vLLM was not ready after {timeout_s:g} s",
                fix="raise the engine's start time-out, or look into the explorer's log for what it waits for",
            ) from error
        except RftdError:
            raise
        except Exception as error:  # vLLM has no one class for what it refuses
            said = (
                str(error)
                if isinstance(error, ValueError | RuntimeError | OSError)
                else f"{type(error).__name__}: {error}"
            )
            raise RolloutError(f"vLLM does not start: {said}", fix="look into the explorer's log") from error

    def _start(self, start: Callable[[], T], gpus: range) -> T:
        # One engine at a time: what is new among the children of this process is this engine's, and no other's.
        with _STARTING, visible_gpus(gpus):
            self._before = _children()
            try:
                return start()
            finally:
                self.look()

    def look(self) -> None:
        """Takes in the processes that there are now."""
        if self._before is None:
            return
        for child in multiprocessing.active_children():
            if child.pid is None or child.pid in self._before or not child.name.startswith("EngineCore"):
                continue
            with suppress(psutil.Error):
                process = psutil.Process(child.pid)
                for each in (process, *process.children(recursive=True)):
                    self._seen.setdefault(each.pid, each)
                self._needed.add(child.pid)

    def need(self, workers: Iterable[int]) -> None:
        """Takes note of the worker processes, without any of which nothing is drawn.

        Others come and go: a compiler, for example. All of them have opened what they share by now, so its names go.
        """
        self._needed.update(pid for pid in workers if pid in self._seen)
        self._remove_segments()

    @property
    def lost(self) -> bool:
        """True once one that is needed has ended. vLLM itself says so only after the others were given time to end."""
        return any(not _lives(self._seen[pid]) for pid in self._needed)

    @property
    def pids(self) -> tuple[int, ...]:
        """Those that were seen, whether they live or not."""
        return tuple(self._seen)

    def ended(self) -> list[str]:
        """The processes that were there and are not any more."""
        return [str(pid) for pid, process in self._seen.items() if not _lives(process)]

    def states(self) -> list[str]:
        """The processes that live, each with what the system says of it, such as `12 stopped`."""
        found: list[str] = []
        for pid, process in self._seen.items():
            with suppress(psutil.Error):
                if _lives(process):
                    found.append(f"{pid} {process.status()}")
        return found

    def end(self) -> None:
        """Ends all that live; returns when none does. It blocks."""
        # Only if the start failed: later ones may be of another engine of this process.
        if not self._seen:
            self.look()
        # The start may have failed before their names went.
        self._remove_segments()
        self._signal(psutil.Process.terminate)
        self.kill()
        _collect(self._seen)
        if self._sockets is not None:
            self._sockets.close()

    def kill(self) -> None:
        """Ends all that live, without asking them; returns when none does. It blocks."""
        self._signal(psutil.Process.kill)

    def _remove_segments(self) -> None:
        """Removes the names of the shared memory that the workers exchange tensors through.

        It has no tracker, and a worker that is killed leaves it for ever. What is mapped stays mapped without a name.
        """
        for pid in self._seen:
            with suppress(OSError):  # it has ended, or this system has no such file
                for name in set(_SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text())):
                    Path(name).unlink(missing_ok=True)

    def _signal(self, send: Callable[[psutil.Process], None]) -> None:
        for process in self._seen.values():
            if _lives(process):
                with suppress(psutil.Error):
                    send(process)
        # Not until their status is collected: that is up to the parent of each, and in a container whose first process
        # collects nothing it never happens.
        patient_until_s = time.monotonic() + GRACE_S
        while any(map(_lives, self._seen.values())) and time.monotonic() < patient_until_s:
            time.sleep(_LOOK_S)


def _children() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()}


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _collect(pids: Iterable[int]) -> None:
    """Takes the exit status of children that ended, so that none stays as a zombie."""
    wanted = set(pids)
    children: list[Any] = multiprocessing.active_children()  # it collects, too
    for child in children:
        if child.pid in wanted:
            child.join(GRACE_S)


@contextmanager
def visible_gpus(numbers: range) -> Iterator[None]:
    """Processes that are started in the block see the GPUs of this process with these numbers; none: all of them.

    The environment is the whole process's, so no two blocks may run at once. Raises WorkError if this process was
    given fewer GPUs.
    """
    if not numbers:
        yield
        return
    before = os.environ.get(VISIBLE)
    # A process that nobody gave any GPUs sees all, which the driver numbers from 0.
    words = [str(number) for number in range(numbers.stop)] if before is None else before.split(",")
    if len(words) < numbers.stop:
        raise WorkError(
            f"the engine is to compute on GPU {numbers.stop} of its explorer, and {VISIBLE} is {before!r}",
            fix="give the explorer as many GPUs as its engines have together, or let the daemon start it",
        )
    os.environ[VISIBLE] = ",".join(words[numbers.start : numbers.stop])
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before
