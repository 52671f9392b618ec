"""`Trackers`: starts one process per tracker of an experiment (such as wandb), and restarts a failed one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from rftd.daemon.run.registry import Entry, Registry
from rftd.daemon.trust.allowances import ALLOW_URLS, NOTHING_MORE, SECRETS, Allowances
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.logs import Logger
from rftd.storage.files.folder_owner import LogIdentity, is_of_another
from rftd.streams.events.experiment import Grant
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.hosts.environment import WorkerEnvironment
from rftd.workers.hosts.local_slot import start_process
from rftd.workers.tracking.cursor import Cursor, CursorFile
from rftd.workers.tracking.registry import variables_of

POLL_INTERVAL_S: Final = 1.0
"""Seconds between two passes over experiments and processes."""
_DELAYS_S: Final = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Pauses in seconds before a failed process is restarted: a key may be repaired, or a package installed."""
_MAX_PROCESSES: Final = 32
"""Maximum number of concurrent processes: further experiments wait for their turn."""
_GRACE_S: Final = 10.0
"""Seconds between asking a process to leave and killing it."""


class TrackerKey(NamedTuple):
    """One tracker of one experiment, identified by the experiment's id and the tracker's kind."""

    experiment: UUID
    """Id of the experiment."""
    kind: str
    """Kind of tracker, such as `wandb`."""


class _Process:
    """A tracker's process with the count of restarts; the object outlives each process."""

    def __init__(self) -> None:
        """Starts without a process, due now."""
        self.child: subprocess.Popen[bytes] | None = None
        """The process; None while none runs."""
        self.points = 0
        """Number of points written by the end of the last process."""
        self.failures = 0
        """Number of consecutive ends without a written point."""
        self.due_s = 0.0
        """Earliest monotonic time of the next start."""


class Trackers:
    """Keeps a process running for each tracker of each started experiment, until every point is written."""

    def __init__(
        self,
        refreshed_registry: Callable[[], Awaitable[Registry]],
        log_url: str,
        *,
        environment: WorkerEnvironment,
        identity: LogIdentity | None,
        allowances: Allowances = NOTHING_MORE,
        clock: Clock,
        logger: Logger,
        command: Sequence[str] = (sys.executable, "-P", "-m", "rftd.daemon"),
    ) -> None:
        """`identity` is the log's: experiments copied from another log are not tracked again. `allowances` are the
        daemon's present allow-lists, possibly narrower than at submission.
        """
        self._refreshed_registry = refreshed_registry
        self._log_url = log_url
        self._environment = environment
        self._identity = identity
        self._allowances = allowances
        self._clock = clock
        self._logger = logger
        self._command = tuple(command)
        """Program and first arguments of a worker process."""
        self._processes: dict[TrackerKey, _Process] = {}
        """Trackers with a process, or waiting for one."""
        self._done: set[TrackerKey] = set()
        """Trackers with every point written, or given up."""

    async def run(self) -> None:
        """Starts and restarts tracker processes until cancelled; then ends them."""
        try:
            while True:
                registry = await self._refreshed_registry()
                for entry, tracker in list(_due_trackers(registry)):
                    await self._ensure_process(entry, tracker)
                await self._clock.sleep(POLL_INTERVAL_S)
        finally:
            await asyncio.to_thread(self._end)

    async def _ensure_process(self, entry: Entry, tracker: TrackerSpec) -> None:
        """Starts the missing process of a tracker once it is due and allowed, and handles the end of a process that has
        exited; a tracker that is done is skipped.
        """
        key = TrackerKey(entry.id, tracker.kind)
        if key in self._done:
            return
        process = self._processes.get(key)
        if process is not None and process.child is not None:
            if (code := process.child.poll()) is not None:
                await self._handle_end(entry, key, process, code)
            return
        now_s = self._clock.monotonic_s()
        alive = sum(tracker_process.child is not None for tracker_process in self._processes.values())
        if alive >= _MAX_PROCESSES or (process is not None and now_s < process.due_s):
            return
        if await asyncio.to_thread(self._is_over, entry, tracker):
            self._done.add(key)
            return
        if not await asyncio.to_thread(Path(entry.job_dir).is_dir):
            return  # the experiment's run creates the folder in a moment
        process = self._processes.setdefault(key, _Process())
        if (grant := self._withdrawn_grant(entry)) is not None:
            process.due_s = self._clock.monotonic_s() + _DELAYS_S[-1]
            fix = f"allow it under `{grant.kind}`, and restart this daemon"
            self._logger.warning(
                "tracker.not_allowed", name=entry.name, tracker=tracker.kind, reason=grant.value, fix=fix
            )
            return
        try:
            process.child = await asyncio.to_thread(self._start, entry, tracker)
        except OSError as error:
            process.due_s = self._clock.monotonic_s() + _DELAYS_S[-1]
            self._logger.warning("tracker.not_started", name=entry.name, tracker=tracker.kind, reason=str(error))

    async def _handle_end(self, entry: Entry, key: TrackerKey, process: _Process, code: int) -> None:
        """Handles the end of a tracker's process with exit status `code`: the tracker is done, is restarted after a
        pause, or is given up after its experiment's end and too many failures in a row.
        """
        process.child = None
        cursor = await asyncio.to_thread(_read_cursor, entry, key.kind)
        if code == 0 and cursor.ended:
            self._done.add(key)
            del self._processes[key]
            return
        # A killed process does not show that the next one fails.
        if cursor.fold.next_number > process.points or code < 0:
            process.failures = 0
            process.points = cursor.fold.next_number
        process.due_s = self._clock.monotonic_s() + _DELAYS_S[min(process.failures, len(_DELAYS_S) - 1)]
        process.failures += 1
        fix = "see the end of that file; it is started again"
        if entry.spine.ended and process.failures > len(_DELAYS_S):
            self._done.add(key)
            fix = f"see the end of that file; then: rftd track add {entry.name} {key.kind}, or start the daemon again"
        where = str(_log_path(entry, key.kind))
        self._logger.warning("tracker.ended", name=entry.name, tracker=key.kind, code=code, where=where, fix=fix)

    def _withdrawn_grant(self, entry: Entry) -> Grant | None:
        """Returns the first granted variable or address that the daemon no longer allows; None if all are allowed."""
        sending = [grant for grant in entry.spine.grants if grant.kind in (SECRETS, ALLOW_URLS)]
        return next(self._allowances.withdrawn(sending), None)

    def _is_over(self, entry: Entry, tracker: TrackerSpec) -> bool:
        """True if the tracker has written every point, or no longer belongs to this log. Blocks."""
        job_dir = Path(entry.job_dir)
        if self._identity is not None and is_of_another(job_dir, self._identity):
            return True
        return (entry.spine.ended and not job_dir.is_dir()) or _read_cursor(entry, tracker.kind).ended

    def _start(self, entry: Entry, tracker: TrackerSpec) -> subprocess.Popen[bytes]:
        """Starts the process of a tracker, with the environment variables it may read."""
        arguments = [*self._command, "worker", "tracker", "--log", self._log_url, "--experiment", str(entry.id)]
        arguments += ["--kind", tracker.kind, "--spine-offset", str(entry.spine_offset)]
        names = (*tracker.variables.values(), *variables_of(tracker.kind))
        may_read = entry.spec.reach.may_read
        environment = self._environment.of_tracker(name for name in names if may_read(name))
        environment |= {"OMP_NUM_THREADS": "1"}
        return start_process(arguments, _log_path(entry, tracker.kind), environment)

    def _end(self) -> None:
        """Asks every process to leave, and kills those still running after the grace period. Blocks."""
        children = [process.child for process in self._processes.values() if process.child is not None]
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _due_trackers(registry: Registry) -> Iterator[tuple[Entry, TrackerSpec]]:
    """Yields the trackers of begun experiments with files here, the newest experiment first."""
    for entry in reversed(registry.entries.values()):
        if entry.spine.spec is None or entry.spine.kept is not Kept.HERE or entry.unread:
            continue
        begun = entry.status in (Status.RUNNING, Status.PAUSED) or entry.spine.ended
        if begun and entry.status is not Status.REJECTED:
            yield from ((entry, tracker) for tracker in entry.spec.trackers)


def cursors_of(entry: Entry) -> dict[str, Cursor]:
    """Returns how far each tracker of the experiment has written, by kind. Blocks."""
    return {tracker.kind: _read_cursor(entry, tracker.kind) for tracker in entry.spec.trackers}


def _read_cursor(entry: Entry, kind: str) -> Cursor:
    """Reads how far a tracker has written; the beginning if its file is missing or unreadable. Blocks."""
    try:
        return CursorFile(Path(entry.job_dir), kind, str(entry.id)[:8]).read()
    except (OSError, RftdError):
        return Cursor()  # the tracker's process reports the error


def _log_path(entry: Entry, kind: str) -> Path:
    """Returns the file for the output of a tracker's process."""
    return Path(entry.job_dir) / "log" / f"tracker_{kind}.log"
