"""A worker that nobody ordered: joins an experiment that is under way and needs it, and the next one after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

from rftd.daemon.crews import Crews, choose, stranded
from rftd.daemon.output.failure import leaves
from rftd.daemon.registry import Entry, Registry
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.streams.log import EventLog
from rftd.workers.membership import ProcessName
from rftd.workers.process import run_explorer, run_trainer

LOOK_S: Final = 1.0
"""The longest wait for news of a worker that stands by."""
WATCH_S: Final = 5.0
"""The time between two looks at whether a worker is of more use elsewhere."""
GIVE_WAY_S: Final = {"trainer": 10.0, "explorer": 30.0}
"""The time a worker is stranded before it leaves, by role: not equal, lest a trainer and explorers cross."""


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
        """`process` is the one that runs the worker, this one if None."""
        self._process = process
        self._log = log
        self._role = role
        self._slot = slot
        self._clock = clock
        self._ids = ids
        self._logger = logger
        self._registry = Registry(log)
        self._crews = Crews(log)

    async def run(self, stop: asyncio.Event) -> None:
        """Works on one experiment after the other until `stop` is set. Raises the error that ended the work on one."""
        standing_by: list[UUID] = []
        try:
            while not stop.is_set():
                await self._registry.catch_up()
                entries = self._registry.under_way()
                chosen = choose(self._role, await self._crews.of(entries))
                if chosen is not None:
                    await self._work(next(entry for entry in entries if entry.id == chosen), stop)
                    continue
                if entries and standing_by != (ids := [each.id for each in entries]):
                    standing_by = ids
                    self._logger.info("worker.standby", experiments=[str(id) for id in ids])
                await self._registry.pump(LOOK_S)
        finally:
            await self._registry.close()
            await self._crews.close()

    async def _work(self, entry: Entry, stop: asyncio.Event) -> None:
        """Works until the experiment ends, `stop` is set, or the worker is of more use elsewhere."""
        self._logger.info("worker.experiment", experiment=str(entry.id))
        run = run_trainer if self._role != "explorer" else partial(run_explorer, slot=self._slot)
        leave = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(entry, stop, leave))
                try:
                    await run(
                        self._log,
                        entry.id,
                        stop=leave,
                        clock=self._clock,
                        ids=self._ids,
                        logger=self._logger,
                        spine_offset=entry.spine_offset,
                        process=self._process,
                    )
                finally:
                    # The watch never ends by itself while the work goes on; without this the task group would wait
                    # for it for ever.
                    watch.cancel()
        except BaseExceptionGroup as group:
            # The task group's wrapping would hide the error's class, by which the process chooses its exit status.
            raise next(iter(leaves(group))) from None

    async def _watch(self, entry: Entry, stop: asyncio.Event, leave: asyncio.Event) -> None:
        """Sets `leave` once `stop` is set, or once the worker was stranded for a while."""
        since_s: float | None = None
        while not await self._asked_within(stop, WATCH_S):
            now_s = self._clock.monotonic_s()
            try:
                idle = await self._stranded(entry)
            except RftdError as error:  # whoever works meets it, too, and knows what to do
                end_if_cancelled()
                self._logger.warning("worker.watch_failed", code=error.code, reason=error.what)
                idle = False
            since_s = (since_s if since_s is not None else now_s) if idle else None
            if since_s is not None and now_s - since_s >= GIVE_WAY_S[self._role]:
                self._logger.info("worker.gives_way", experiment=str(entry.id))
                break
        leave.set()

    async def _stranded(self, entry: Entry) -> bool:
        await self._registry.catch_up()
        entries: Sequence[Entry] = self._registry.under_way()
        return len(entries) > 1 and stranded(self._role, entry.id, await self._crews.of(entries))

    async def _asked_within(self, stop: asyncio.Event, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await stop.wait()
        except TimeoutError:
            return False
        return True
