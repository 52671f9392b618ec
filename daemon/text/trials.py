"""`Trials`: the first rows of a checked file, and a tried rollout, in a process under bounds of time and size."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import ConflictError, DataError
from rftd.ops.ids import Ids
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.hosts.environment import WorkerEnvironment
from rftd.workers.hosts.leftovers import MARK, Leftovers
from rftd.workers.rollout.trial import PROGRAM, Trial, TrialAnswer
from rftd.workers.rollout.tried_rollout import FirstRows, TriedRollout

_SILENT: Final = "TOKENIZERS_PARALLELISM"
"""Variable without which forked tokenizers print warnings."""


class Trials:
    """Runs trials as workers run: with the variables of a worker, in a session of their own, ended with all processes.

    One look at rows and one rollout at a time: a second look waits, a second rollout is refused.
    """

    def __init__(self, ids: Ids, environment: WorkerEnvironment | None = None) -> None:
        """`environment` builds the variables of the process; by default those of any worker."""
        self._ids = ids
        self._environment = environment or WorkerEnvironment()
        self._reading = asyncio.Lock()
        self._trying = asyncio.Lock()

    async def first_rows(self, spec: ExperimentSpec, taskset: str | None, row: int, rows: int) -> FirstRows:
        """Returns rows of a taskset and the first prompt. Raises DataError, also for a late or ended process."""
        async with self._reading:
            answer = await self._answer(spec, taskset, row, rows=rows, timeout_s=limits.TRIAL_ROWS_S)
        assert answer.rows is not None
        return answer.rows

    async def rollout(
        self, spec: ExperimentSpec, taskset: str | None, row: int, seed: int, variables: tuple[str, ...]
    ) -> TriedRollout:
        """Returns a rollout with everything that happened in it; `variables` are names of the daemon's variables.

        Raises DataError, also for a late or ended process, and ConflictError while another rollout is tried.
        """
        if self._trying.locked():
            raise ConflictError("another rollout is being tried", fix="wait for its end")
        async with self._trying:
            answer = await self._answer(
                spec, taskset, row, seed=seed, variables=variables, timeout_s=limits.TRIAL_ROLLOUT_S
            )
        assert answer.rollout is not None
        return answer.rollout

    async def _answer(
        self,
        spec: ExperimentSpec,
        taskset: str | None,
        row: int,
        *,
        timeout_s: float,
        rows: int = 0,
        seed: int = 0,
        variables: tuple[str, ...] = (),
    ) -> TrialAnswer:
        """Returns the answer of the program, run once. Raises DataError for a fault reported by the program, and
        without an answer.
        """
        with tempfile.TemporaryDirectory(prefix="rftd-try-", ignore_cleanup_errors=True) as folder:
            trial = Trial(spec=spec, taskset=taskset, row=row, rows=rows, seed=seed, folder=folder)
            written = await self._run(msgspec.json.encode(trial), Path(folder), variables, timeout_s)
        try:
            answer = json_decoder(TrialAnswer).decode(written)
        except UNREADABLE:
            raise DataError("the trial ended without an answer", fix="see `rftd try FILE` for what it prints") from None
        if answer.fault is not None:
            fault = answer.fault
            raise DataError(fault.what, where=fault.where, field=fault.field, fix=fault.fix)
        return answer

    async def _run(self, text: bytes, folder: Path, variables: tuple[str, ...], timeout_s: float) -> bytes:
        """Returns the output of the program, which ends at the latest after `timeout_s` or when its client leaves.
        Raises DataError for a late or too large output.
        """
        mark = f"trial/{self._ids.new()}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", PROGRAM),
            cwd=folder,
            env={**self._environment.of_tracker(variables), MARK: mark, _SILENT: "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            limit=limits.TRIAL_SIZE_BYTES,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                with suppress(BrokenPipeError, ConnectionResetError):
                    process.stdin.write(text)
                    await process.stdin.drain()
                process.stdin.close()
                return await _at_most(process.stdout, limits.TRIAL_SIZE_BYTES)
        except TimeoutError:
            raise DataError(f"the trial had no answer within {timeout_s:g} s and was ended") from None
        finally:
            await asyncio.shield(asyncio.ensure_future(_ended(process, mark, folder)))


async def _at_most(stream: asyncio.StreamReader, most: int) -> bytes:
    """Returns the bytes of a stream up to its end. Raises DataError for more than `most`."""
    try:
        await stream.readexactly(most + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial
    raise DataError(f"the trial's answer has more than {most:,} bytes")


async def _ended(process: asyncio.subprocess.Process, mark: str, folder: Path) -> None:
    """Kills the program's session, and processes started by the program in sessions of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    for process_left in await asyncio.to_thread(Leftovers(mark, folder / "trial.log").processes):
        with suppress(OSError):
            os.kill(process_left.pid, signal.SIGKILL)
