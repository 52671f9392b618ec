"""`Recomputations`: the terms of a step's objective at each token, recomputed by one process at a time, beside no run.

A request lives in memory: a restarted daemon forgets it, and has to be asked again. Answers are files in a folder, a
cache limited to the newest.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from rftd.daemon.run.recomputation import Recomputation
from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError
from rftd.ops.logs import Logger
from rftd.workers.hosts.environment import WorkerEnvironment

POLL_INTERVAL_S: Final = 1.0
"""Seconds between two looks at the runs of this daemon."""
_GRACE_S: Final = 10.0
"""Seconds for a process to leave, before it is killed."""


class PlannedStep(NamedTuple):
    """A step, identified by the position of its plan in the log."""

    experiment: UUID
    """Id of the experiment."""
    step: int
    """Number of the step."""
    partition: int
    """Partition of the spine with the plan's record."""
    offset: int
    """Offset of the plan's record in the partition."""


class Recomputations:
    """Recomputes the terms of one step at a time in a separate process, which is ended when an experiment begins to run
    on this daemon, and started anew later.
    """

    def __init__(
        self,
        folder: Path,
        log_url: str,
        *,
        environment: WorkerEnvironment,
        busy: Callable[[], bool],
        clock: Clock,
        logger: Logger,
        command: Sequence[str] = (sys.executable, "-P", "-m", "rftd.daemon"),
    ) -> None:
        """`folder` holds the answers; `environment` is for the process, a reader of the log at `log_url`; `busy` is
        True while an experiment runs on this daemon; `command` starts rftd's command line.
        """
        self._folder = folder
        self._log_url = log_url
        self._environment = environment
        self._busy = busy
        self._clock = clock
        self._logger = logger
        self._command = tuple(command)
        self._process_log = folder / "process.log"
        """File with the standard error of the last process."""
        self._requested: PlannedStep | None = None
        self._running = False
        self._sentence = ""
        self._failure: tuple[PlannedStep, str] | None = None
        """The last failure, with its reason."""
        self._woken = asyncio.Event()

    def request(self, step: PlannedStep) -> Recomputation:
        """Requests a recomputation and returns its state; a repetition changes nothing unless the last attempt failed.
        Raises ConflictError while another step is under way.
        """
        present = self.state(step)
        if present is not None and present.state != "failed":
            return present
        if self._requested is not None:
            raise ConflictError(
                f"step {self._requested.step} of experiment {self._requested.experiment} is being recomputed",
                fix="one step at a time: ask again once it has ended",
            )
        self._failure = None
        self._requested = step
        self._sentence = "waits for its turn"
        self._woken.set()
        return Recomputation(step=step.step, state="queued", sentence=self._sentence)

    def state(self, step: PlannedStep) -> Recomputation | None:
        """Returns the state of a step's recomputation; None without a request, an answer and a failure."""
        if self.path_of(step).is_file():
            return Recomputation(step=step.step, state="done", sentence="recomputed")
        if step == self._requested:
            return Recomputation(
                step=step.step, state="running" if self._running else "queued", sentence=self._sentence
            )
        if self._failure is not None and self._failure[0] == step:
            return Recomputation(step=step.step, state="failed", sentence=self._failure[1])
        return None

    def path_of(self, step: PlannedStep) -> Path:
        """Returns the path of a step's answer, whether present or not."""
        return self._folder / step.experiment.hex / f"{step.step}-{step.partition}-{step.offset}.terms"

    def forget(self, experiment: UUID) -> None:
        """Removes the answers of an experiment. Blocks."""
        for path in self._folder.glob(f"{experiment.hex}/*.terms*"):
            path.unlink(missing_ok=True)

    async def run(self) -> None:
        """Carries out requests until cancelled; then ends the process."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while (step := self._requested) is not None:
                if self._busy():
                    self._sentence = "waits until no run of this daemon uses the memory"
                    await self._clock.sleep(POLL_INTERVAL_S)
                else:
                    await self._recompute(step)

    async def _recompute(self, step: PlannedStep) -> None:
        """Runs the process of a step to its end, and notes a failure; after an interruption by a run, the request
        waits.
        """
        self._running = True
        self._sentence = "the process starts"
        reason: str | None = "this daemon cannot start a process"
        try:
            path = self.path_of(step)
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            reason = await self._one_process(step, path)
        except OSError as error:
            reason = f"cannot start the process: {error}"
        finally:
            self._running = False
        if reason is None:
            return  # ended for a run
        self._requested = None
        if reason:
            self._failure = (step, reason)
            self._logger.warning("terms.failed", experiment=str(step.experiment), step=step.step, reason=reason)
        await asyncio.to_thread(self._drop_oldest)

    async def _one_process(self, step: PlannedStep, path: Path) -> str | None:
        """Runs the process writing a step's answer to `path`. Returns the reason of a failure, empty after success;
        None if the process was ended because a run began.
        """
        arguments = [*self._command, "worker", "terms", "--log", self._log_url, "--experiment", str(step.experiment)]
        with self._process_log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                *("--step", str(step.step), "--into", str(path)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment.of_tracker(()),
                start_new_session=True,
            )
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read(process))
                beginning = tasks.create_task(self._until_busy())
                await asyncio.wait((reading, beginning), return_when=asyncio.FIRST_COMPLETED)
                began = not reading.done()
                reading.cancel()
                beginning.cancel()
            if began:
                return None
            if await process.wait() == 0:
                return ""
            return reading.result() or f"the process ended: {self._last_words()}"
        finally:
            await _end(process)

    async def _read(self, process: asyncio.subprocess.Process) -> str:
        """Reads the process's messages to the end, updating the shown sentence; returns the reason of a failure, empty
        if none was reported.
        """
        assert process.stdout is not None
        reason = ""
        async for line in process.stdout:
            message = json.loads(line)
            if "version" in message:
                self._sentence = f"replays step {message['version'] + 1} of {message['step']}"
            else:
                reason = ": ".join(filter(None, (message["where"], message["what"])))
                reason += f"; {message['fix']}" if message["fix"] else ""
        return reason

    def _last_words(self) -> str:
        """Returns the last line of the process's error output (at most 500 characters), or words for its absence."""
        with suppress(OSError):
            text = self._process_log.read_text(errors="replace").strip()
            return text.rpartition("\n")[2][:500] or f"see {self._process_log}"
        return "without a word"

    async def _until_busy(self) -> None:
        """Returns once an experiment runs on this daemon."""
        while not self._busy():
            await self._clock.sleep(POLL_INTERVAL_S)

    def _drop_oldest(self) -> None:
        """Removes the oldest answers beyond the limit, and files of interrupted processes."""
        for path in self._folder.glob("*/*.tmp"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # removed by a concurrent `forget`
            paths = sorted(self._folder.glob("*/*.terms"), key=lambda path: path.stat().st_mtime_ns)
            for path in paths[: -limits.STEP_TERMS_FILES]:
                path.unlink(missing_ok=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asks a process to leave, kills it after the grace period, and collects its status."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
