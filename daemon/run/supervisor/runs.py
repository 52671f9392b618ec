"""`Runs`: the experiments driven by this daemon at the same time, independently of each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from rftd.daemon.cli.output.failure import leaves
from rftd.daemon.run.registry import Entry
from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.daemon.run.why.under_way import WorkUnderWay
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.serve.reconnecting import UNREACHABLE_ERRORS
from rftd.ops import limits
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import FencedError, LogLossError, explain
from rftd.ops.logs import Logger
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.lost_records import Witness

IDLE_S: Final = 0.5
"""Longest time in seconds between two looks at the queue; a change is looked at immediately."""
RETRY_PAUSE_S: Final = 1.0
"""Pause in seconds before a run is started again after the log did not respond."""
HEALTHY_S: Final = 60.0
"""Seconds of running after which earlier errors of a run are forgotten: the next error counts as the first."""


class Broken(NamedTuple):
    """An experiment whose run ended with an error; the run is started again after a pause."""

    reason: str
    """Text of the error."""
    since_ns: int
    """Time of the last error, in nanoseconds since 1970."""
    errors: int
    """Number of consecutive errors."""


class UnderWay(Protocol):
    """A running experiment of this daemon: decided on here (`Run`), or with workers only (`Hosting`)."""

    state: RunState
    """Folded state of the experiment."""
    remembers: Witness | None
    """Heads read by the run, for the loss check, if the log lost records; else None."""

    async def drive(self) -> None:
        """Returns when the experiment has ended; cancelling leaves its workers running."""
        ...

    async def drain(self) -> None:
        """Lets the workers finish and leave, then returns; the experiment continues at a later start."""
        ...

    async def gone(self) -> None:
        """Returns once the run and its workers have ended."""
        ...

    def waits(self) -> list[Wait]:
        """Returns the waits of each role, as of now."""
        ...

    def snapshot(self) -> RunSnapshot:
        """Returns the figures on the experiment's progress at this moment."""
        ...

    def under_way(self) -> WorkUnderWay | None:
        """Returns the unfinished rollouts or held-out rows; None without any."""
        ...


class Runs:
    """The running experiments of one daemon, at most `slots` at once; `drive` lasts as long as the daemon."""

    def __init__(
        self,
        make: Callable[[Entry], UnderWay],
        *,
        slots: int,
        clock: Clock,
        logger: Logger,
        note: Callable[[Entry, BaseException], Awaitable[None]] | None = None,
        lost: Callable[[Witness | None, UUID], Awaitable[None]] | None = None,
    ) -> None:
        """`make` creates a run without starting it; `note` records in the log the error that ended a run.

        `lost` compares the heads read by a run that met a loss of the log with the log; such a run's error is not
        recorded, because the run may append nothing.
        """
        self._hear_loss = lost
        """Function comparing the heads remembered by a run that met lost records with the log; None for none."""
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        """Task of each running experiment."""
        self.slots: Final = slots
        self.broken: Final[dict[UUID, Broken]] = {}
        """Error of each experiment whose last run failed; removed once the experiment runs again."""
        self._make = make
        self._note = note
        self._clock = clock
        self._logger = logger
        self._under_way: dict[UUID, UnderWay] = {}
        """The running experiments, by id."""
        self._resting: set[UUID] = set()
        """Experiments pausing after a failed run; each keeps its slot until the next start."""
        self._changed = asyncio.Event()
        """Set when a run ends or the queue changes."""
        self._draining = False
        """True once no run may be started any more."""

    def __len__(self) -> int:
        """Returns the number of experiments running here."""
        return len(self._under_way)

    def __contains__(self, experiment: UUID) -> bool:
        """True if the experiment runs here."""
        return experiment in self._under_way

    def __iter__(self) -> Iterator[UnderWay]:
        """Iterates over the runs of this daemon."""
        return iter(list(self._under_way.values()))

    def of(self, experiment: UUID) -> UnderWay | None:
        """Returns this daemon's run of an experiment; None if the experiment does not run here."""
        return self._under_way.get(experiment)

    def look(self) -> None:
        """Wakes `drive`, because another experiment may be ready to start."""
        self._changed.set()

    async def drive(self, line: Callable[[], Awaitable[Sequence[Entry]]]) -> None:
        """Starts the experiments returned by `line`, in order, whenever a slot is free, until cancelled or drained.

        Cancelling leaves the workers running, for the next daemon to adopt. Raises FencedError if another daemon took
        an experiment over: this daemon then ends, with all its runs.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._draining:
                    self._changed.clear()
                    for entry in await line():
                        if len(self._under_way) + len(self._resting) >= self.slots or self._draining:
                            break
                        if entry.id not in self._under_way and entry.id not in self._resting:
                            self._begin(entry, tasks)
                    await self._pause()
        except BaseExceptionGroup as group:
            errors = list(leaves(group))
            raise next((error for error in errors if isinstance(error, FencedError)), errors[0]) from None
        finally:
            self._under_way.clear()  # a run cancelled before its first turn is still there, and answers nobody

    def _begin(self, entry: Entry, tasks: asyncio.TaskGroup) -> None:
        """Creates the run of an experiment, and drives it in a task."""
        run = self._under_way[entry.id] = self._make(entry)
        self._tasks[entry.id] = tasks.create_task(self._drive(run, entry))

    def stop(self, experiment: UUID) -> None:
        """Cancels the run of an experiment at once: it appends nothing more, and its workers keep running."""
        task = self._tasks.get(experiment)
        if task is not None and task is not asyncio.current_task():  # the asking run ends by itself
            task.cancel()

    async def drain(self) -> None:
        """Ends all runs in order: workers finish their work and leave; the next daemon continues the experiments."""
        self._draining = True
        self._changed.set()
        async with asyncio.TaskGroup() as tasks:
            for run in list(self._under_way.values()):
                tasks.create_task(run.drain())

    async def _pause(self) -> None:
        """Returns at the next change, or after `IDLE_S`."""
        try:
            async with asyncio.timeout(IDLE_S):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _drive(self, run: UnderWay, entry: Entry) -> None:
        """Drives one experiment; its errors concern only itself, except a fence, which concerns the daemon."""
        self._logger.info("experiment.run", experiment=str(entry.id), name=entry.name, state=entry.status)
        began_s = self._clock.monotonic_s()
        again_s = 0.0
        try:
            await run.drive()
        except FencedError:
            self._logger.warning("experiment.taken_over", experiment=str(entry.id))
            raise
        except UNREACHABLE_ERRORS as error:
            end_if_cancelled()
            self._logger.warning("log.away", part=entry.name, reason=error.what)
            again_s = RETRY_PAUSE_S
        except LogLossError as error:
            self._logger.error("experiment.stopped", experiment=str(entry.id), name=entry.name, reason=error.what)
            again_s = RETRY_PAUSE_S
            if self._hear_loss is not None:
                await self._hear_loss(run.remembers, entry.id)
        except (Exception, SystemExit) as error:
            end_if_cancelled()  # a stopped run writes nothing any more
            again_s = await self._note_broken(entry, error, healthy=self._clock.monotonic_s() - began_s > HEALTHY_S)
        else:
            self.broken.pop(entry.id, None)
        finally:
            if again_s:
                # Into `_resting` before out of `_under_way`: in between, `drive` would begin the experiment a second
                # time, beside the workers of the first.
                self._resting.add(entry.id)
            self._under_way.pop(entry.id, None)
            self._tasks.pop(entry.id, None)
            self._changed.set()
        if entry.id in self._resting:
            try:
                await self._clock.sleep(again_s)
            finally:
                self._resting.discard(entry.id)
                self._changed.set()

    async def _note_broken(self, entry: Entry, error: BaseException, *, healthy: bool) -> float:
        """Logs and records an error that ended a run, and returns the seconds before its next start; other runs
        continue.
        """
        before = self.broken.get(entry.id)
        errors = 1 if before is None or healthy else before.errors + 1
        self.broken[entry.id] = Broken(explain(error), self._clock.now_ns(), errors)
        again_s = limits.PAUSE_BACKOFF_S[min(errors, len(limits.PAUSE_BACKOFF_S)) - 1]
        self._logger.error(
            "experiment.broken", experiment=str(entry.id), name=entry.name, again_in_s=again_s, exc_info=error
        )
        if self._note is not None:
            try:
                await self._note(entry, error)
            except FencedError:
                raise
            except Exception as unwritten:  # the reason is kept here all the same, and shown on request
                self._logger.error("experiment.unnoted", experiment=str(entry.id), reason=explain(unwritten))
        return again_s
