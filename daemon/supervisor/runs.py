"""`Runs`: the experiments that this daemon drives at the same time, each by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Protocol
from uuid import UUID

from rftd.daemon.output.failure import leaves
from rftd.daemon.patience import AWAY
from rftd.daemon.supervisor.registry import Entry
from rftd.daemon.why.wait import Wait
from rftd.ops.clock import Clock
from rftd.ops.errors import FencedError
from rftd.ops.logs import Logger
from rftd.streams.folds.run_state import RunState

IDLE_S: Final = 0.5
AGAIN_S: Final = 1.0
"""Until a run that the log did not answer is taken up anew."""


class UnderWay(Protocol):
    """An experiment that is driven here: decided on (`Run`), or only worked for (`Hosting`)."""

    state: RunState

    async def drive(self) -> None:
        """Returns when it has ended; cancelling leaves its workers running."""
        ...

    async def drain(self) -> None:
        """Returns once its workers have left; it goes on another time."""
        ...

    async def gone(self) -> None:
        """Returns once all is over."""
        ...

    def waits(self) -> list[Wait]:
        """What each role does or waits for now."""
        ...


class Runs:
    """At most `slots` at once. `drive` runs for as long as the daemon."""

    def __init__(self, make: Callable[[Entry], UnderWay], *, slots: int, clock: Clock, logger: Logger) -> None:
        """`make` gives a run that has not begun."""
        self.slots: Final = slots
        self._make = make
        self._clock = clock
        self._logger = logger
        self._under_way: dict[UUID, UnderWay] = {}
        self._resting: set[UUID] = set()
        """Keep their slots until they are taken up anew."""
        self._changed = asyncio.Event()
        self._draining = False

    def __len__(self) -> int:
        """How many are under way here."""
        return len(self._under_way)

    def __contains__(self, experiment: UUID) -> bool:
        """True if it is under way here."""
        return experiment in self._under_way

    def __iter__(self) -> Iterator[UnderWay]:
        """Those that are under way here."""
        return iter(list(self._under_way.values()))

    def of(self, experiment: UUID) -> UnderWay | None:
        """The run of an experiment that is under way here."""
        return self._under_way.get(experiment)

    def look(self) -> None:
        """Says that there may be another one to begin."""
        self._changed.set()

    async def drive(self, line: Callable[[], Awaitable[Sequence[Entry]]]) -> None:
        """Begins whoever is next in `line` whenever a slot is free, until cancelled or drained.

        Cancelling leaves the workers running, for the next daemon to adopt. Raises FencedError if another daemon took
        an experiment over: this one ends then, with all it drives.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._draining:
                    self._changed.clear()
                    for entry in await line():
                        if len(self._under_way) + len(self._resting) >= self.slots or self._draining:
                            break
                        if entry.id not in self._under_way and entry.id not in self._resting:
                            run = self._under_way[entry.id] = self._make(entry)
                            tasks.create_task(self._drive(run, entry))
                    await self._pause()
        except BaseExceptionGroup as group:
            errors = list(leaves(group))
            raise next((each for each in errors if isinstance(each, FencedError)), errors[0]) from None

    async def drain(self) -> None:
        """Ends all that is under way: workers finish and leave; the next daemon goes on from there."""
        self._draining = True
        self._changed.set()
        async with asyncio.TaskGroup() as tasks:
            for run in list(self._under_way.values()):
                tasks.create_task(run.drain())

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _drive(self, run: UnderWay, entry: Entry) -> None:
        """One experiment; what befalls it is its own affair, but for a fence: that is about the daemon."""
        self._logger.info("experiment.run", experiment=str(entry.id), name=entry.name, state=entry.status)
        try:
            await run.drive()
        except FencedError:
            self._logger.warning("experiment.taken_over", experiment=str(entry.id))
            raise
        except AWAY as error:
            self._logger.warning("log.away", part=entry.name, reason=error.what)
            self._resting.add(entry.id)
        finally:
            del self._under_way[entry.id]
            self._changed.set()
        if entry.id in self._resting:
            try:
                await self._clock.sleep(AGAIN_S)
            finally:
                self._resting.discard(entry.id)
                self._changed.set()
