"""A worker that nobody ordered: joins an experiment that is under way and needs it, and the next one after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from rftd.daemon.supervisor.registry import Entry, Registry
from rftd.ops.clock import Clock
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.streams import topics
from rftd.streams.folds.roster import Roster
from rftd.streams.follower import Follower
from rftd.streams.log import EventLog
from rftd.streams.start import beginning_of
from rftd.streams.topics import Partition
from rftd.workers.membership import ProcessName
from rftd.workers.process import run_explorer, run_trainer

LOOK_S = 1.0


class ExternalWorker:
    """`rftd worker explorer|trainer` without an experiment. `run` works until it is asked to stop."""

    def __init__(
        self,
        log: EventLog,
        role: str,
        slot: int,
        *,
        clock: Clock,
        ids: Ids,
        logger: Logger,
        process: ProcessName | None = None,
    ) -> None:
        """`process`: the one that runs it, this one if None."""
        self._process = process
        self._log = log
        self._role = role
        self._slot = slot
        self._clock = clock
        self._ids = ids
        self._logger = logger

    async def run(self, stop: asyncio.Event) -> None:
        """Works on one experiment after the other until `stop` is set. Raises the error that ended the work on one."""
        registry = Registry(self._log)
        standing_by: list[UUID] = []
        try:
            while not stop.is_set():
                await registry.catch_up()
                entries = registry.under_way()
                if (entry := await self._choice(entries)) is not None:
                    await self._work(entry, stop)
                    continue
                if entries and standing_by != (ids := [each.id for each in entries]):
                    standing_by = ids
                    self._logger.info("worker.standby", experiments=[str(id) for id in ids])
                await registry.pump(LOOK_S)
        finally:
            await registry.close()

    async def _choice(self, entries: Sequence[Entry]) -> Entry | None:
        """For a trainer the first that has none; for an explorer the first of those with the fewest explorers."""
        if self._role == "trainer":
            for entry in entries:
                if not await self._members(entry):
                    return entry
            return None
        if len(entries) <= 1:
            return next(iter(entries), None)
        counts = [(await self._members(entry), number) for number, entry in enumerate(entries)]
        return entries[min(counts)[1]]

    async def _work(self, entry: Entry, stop: asyncio.Event) -> None:
        self._logger.info("worker.experiment", experiment=str(entry.id))
        run = run_trainer if self._role != "explorer" else partial(run_explorer, slot=self._slot)
        await run(
            self._log,
            entry.id,
            stop=stop,
            clock=self._clock,
            ids=self._ids,
            logger=self._logger,
            spine_offset=entry.spine_offset,
            process=self._process,
        )

    async def _members(self, entry: Entry) -> int:
        """How many of this role live there: two trainers that fence each other in turn would get nowhere."""
        workers = Partition(topics.WORKERS, 0)
        start = (await beginning_of(self._log, entry.id, spine_offset=entry.spine_offset)).positions
        roster = Roster()
        follower = Follower(
            self._log, roster, experiment=entry.id, positions={workers: start.get(workers, 0)}, clock=self._clock
        )
        try:
            await follower.catch_up()
        finally:
            await follower.close()
        return sum(started.role == self._role for started in roster.live.values())
