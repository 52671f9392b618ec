"""A worker that nobody ordered: joins an experiment that is under way and needs it, and the next one after it.

`Crews` are the workers that each experiment under way has; they tell where one more is of use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from rftd.daemon.cli.output.failure import leaves
from rftd.daemon.run.registry import Entry, Registry
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.ops.tracing.tracer import Tracer
from rftd.storage.files.folder_owner import LogIdentity, is_of_another
from rftd.streams.folds.roster import Roster
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.effective import effective
from rftd.streams.log.envelope import Record
from rftd.streams.log.feed import Feed
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.start import beginning_of
from rftd.streams.log.topics import Partition
from rftd.workers.hosts.membership import ProcessName
from rftd.workers.process import run_explorer, run_trainer

_WORKERS = Partition(topics.WORKERS, 0)


class Crew(NamedTuple):
    """The workers that one experiment has, and whether it can use them."""

    experiment: UUID
    running: bool
    """False while it is paused."""
    explores: bool
    """False if no stage of it has work for an explorer."""
    trainers: int = 0
    explorers: int = 0

    def idle(self, role: str) -> bool:
        """True if a worker of the role has nothing to do here before another role comes, or the pause ends."""
        if not self.running:
            return True
        return not (self.explores and self.trainers) if role == "explorer" else self.explores and not self.explorers

    def lacks(self, role: str) -> bool:
        """True if a worker of the role, and nothing else, is missing here."""
        if role == "explorer":
            return self.running and self.explores and self.trainers > 0 and not self.explorers
        return self.running and not self.trainers and (self.explorers > 0 or not self.explores)


def choose(role: str, crews: Sequence[Crew]) -> UUID | None:
    """The experiment that a worker of the role joins; None if it stands by.

    A trainer takes one without a trainer (two that fence each other in turn would get nowhere), an explorer the one
    with the fewest explorers: of several the first that can go on.
    """
    if role == "trainer":
        free = [each for each in crews if not each.trainers]
        best = min(free, key=lambda each: (not each.running, each.idle(role)), default=None)
    else:
        free = [each for each in crews if each.explores]
        best = min(free, key=lambda each: (not each.running, each.explorers, not each.trainers), default=None)
    return best.experiment if best is not None else None


def stranded(role: str, experiment: UUID, crews: Sequence[Crew]) -> bool:
    """True if a worker of the role has nothing to do in its experiment while another one waits for it alone.

    Of a paused experiment a trainer goes wherever there is none: explorers come after it.
    """
    here = next((each for each in crews if each.experiment == experiment), None)
    if here is None or not here.idle(role):
        return False
    others = [each for each in crews if each is not here]
    if role == "trainer" and not here.running:
        return any(each.running and not each.trainers for each in others)
    return any(each.lacks(role) for each in others)


class Crews:
    """Follows who joins and leaves the experiments of a log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._feed: Feed | None = None
        self._fences = FenceView(midway=True)
        self._rosters: dict[UUID, Roster] = {}

    async def of(self, entries: Sequence[Entry]) -> list[Crew]:
        """The crews of these experiments, which are under way, as the log shows them now."""
        if entries:
            await self._catch_up(entries)
        return [self._crew(entry) for entry in entries]

    async def close(self) -> None:
        """Ends the subscription."""
        if self._feed is not None:
            await self._feed.close()

    def _crew(self, entry: Entry) -> Crew:
        live = self._rosters.get(entry.id, Roster()).live.values()
        return Crew(
            experiment=entry.id,
            running=entry.status is Status.RUNNING,
            explores=any(stage.kind != "train" for stage in entry.spec.stages),
            trainers=sum(started.role == "trainer" for started in live),
            explorers=sum(started.role == "explorer" for started in live),
        )

    async def _catch_up(self, entries: Iterable[Entry]) -> None:
        """Reads up to the present head; an experiment that begins later has its workers above what was read."""
        if self._feed is None:
            starts = [await beginning_of(self._log, each.id, spine_offset=each.spine_offset) for each in entries]
            # From the earliest of them: the stream of workers is one partition for all experiments, read once for
            # all.
            start = min(each.positions.get(_WORKERS, 0) for each in starts)
            self._feed = Feed(self._log.subscribe({_WORKERS: start}))
        heads = await self._log.heads()
        goal = heads[_WORKERS].next_offset if _WORKERS in heads else 0
        while self._feed.positions[_WORKERS] < goal:
            await self._feed.pump(1.0, self._take)

    def _take(self, record: Record) -> None:
        decoded = effective(record, self._fences, lambda head: head.experiment is not None)
        if decoded is not None and decoded.head.experiment is not None:
            self._rosters.setdefault(decoded.head.experiment, Roster()).apply(decoded)


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
        tracer: Tracer | None = None,
        identity: LogIdentity | None = None,
    ) -> None:
        """`process` is the one that runs the worker, this one if None.

        Experiments whose folders are not those of the log of this `identity` are left to the other log.
        """
        self._identity = identity
        self._tracer = tracer
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
                entries = await asyncio.to_thread(self._ours, self._registry.under_way())
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

    def _ours(self, entries: Iterable[Entry]) -> list[Entry]:
        own = self._identity
        return [entry for entry in entries if own is None or not is_of_another(Path(entry.job_dir), own)]

    async def _work(self, entry: Entry, stop: asyncio.Event) -> None:
        """Works until the experiment ends or is released, `stop` is set, or the worker is of more use elsewhere."""
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
                        tracer=self._tracer,
                    )
                finally:
                    # The watch never ends by itself while the work goes on; without this the task group would wait
                    # for it for ever.
                    watch.cancel()
        except BaseExceptionGroup as group:
            # The task group's wrapping would hide the error's class, by which the process chooses its exit status.
            raise next(iter(leaves(group))) from None

    async def _watch(self, entry: Entry, stop: asyncio.Event, leave: asyncio.Event) -> None:
        """Sets `leave` once `stop` is set, the experiment is released, or the worker was stranded for a while."""
        since_s: float | None = None
        while not await self._asked_within(stop, WATCH_S):
            now_s = self._clock.monotonic_s()
            try:
                idle = await self._stranded(entry)
            except RftdError as error:  # whoever works meets it, too, and knows what to do
                end_if_cancelled()
                self._logger.warning("worker.watch_failed", code=error.code, reason=error.what)
                idle = False
            # Queued too: whoever missed that it was released, for a resume came at once, would wait for its next turn.
            if entry.spine.released or entry.spine.status is Status.QUEUED:
                self._logger.info("worker.released", experiment=str(entry.id))
                break
            since_s = (since_s if since_s is not None else now_s) if idle else None
            if since_s is not None and now_s - since_s >= GIVE_WAY_S[self._role]:
                self._logger.info("worker.gives_way", experiment=str(entry.id))
                break
        leave.set()

    async def _stranded(self, entry: Entry) -> bool:
        await self._registry.catch_up()
        entries = await asyncio.to_thread(self._ours, self._registry.under_way())
        return len(entries) > 1 and stranded(self._role, entry.id, await self._crews.of(entries))

    async def _asked_within(self, stop: asyncio.Event, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await stop.wait()
        except TimeoutError:
            return False
        return True
