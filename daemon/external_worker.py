"""A worker that nobody ordered: joins whatever experiment is under way, and the next one after it."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

from rftd.daemon.supervisor.registry import Entry, Registry
from rftd.ops.clock import Clock
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.streams import topics
from rftd.streams.folds.roster import Roster
from rftd.streams.folds.spine import Status
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
        waits_for: UUID | None = None
        try:
            while not stop.is_set():
                await registry.catch_up()
                entry = registry.next_in_line()
                if entry is None or entry.status not in (Status.RUNNING, Status.PAUSED):
                    await registry.pump(LOOK_S)
                elif self._role == "trainer" and await self._has_trainer(entry.id, entry.spine_offset):
                    if waits_for != entry.id:
                        waits_for = entry.id
                        self._logger.info("worker.standby", experiment=str(entry.id))
                    await registry.pump(LOOK_S)
                else:
                    await self._work(entry, stop)
        finally:
            await registry.close()

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

    async def _has_trainer(self, experiment: UUID, spine_offset: int) -> bool:
        """True while another trainer lives: two that fence each other in turn would get nowhere."""
        workers = Partition(topics.WORKERS, 0)
        start = (await beginning_of(self._log, experiment, spine_offset=spine_offset)).positions
        roster = Roster()
        follower = Follower(
            self._log, roster, experiment=experiment, positions={workers: start.get(workers, 0)}, clock=self._clock
        )
        try:
            await follower.catch_up()
        finally:
            await follower.close()
        return any(started.role == "trainer" for started in roster.live.values())
