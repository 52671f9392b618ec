"""`ExternalWorker`: a worker not started by a daemon, which joins running experiments that need one, one after the
other.

`Crews` follows the workers of each running experiment, to find where one more is useful.
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
"""The partition with the events of workers."""


class Crew(NamedTuple):
    """The workers of one running experiment, and which roles it can use."""

    experiment: UUID
    running: bool
    """False while the experiment is paused."""
    explores: bool
    """False if no stage has work for an explorer."""
    trainers: int = 0
    explorers: int = 0

    def idle(self, role: str) -> bool:
        """True if a worker of the role would only wait here, for another role or the end of a pause."""
        if not self.running:
            return True
        return not (self.explores and self.trainers) if role == "explorer" else self.explores and not self.explorers

    def lacks(self, role: str) -> bool:
        """True if the experiment waits for nothing but a worker of this role."""
        if role == "explorer":
            return self.running and self.explores and self.trainers > 0 and not self.explorers
        return self.running and not self.trainers and (self.explorers > 0 or not self.explores)


def choose(role: str, crews: Sequence[Crew]) -> UUID | None:
    """Returns the experiment that a worker of the role should join; None if there is none.

    A trainer joins an experiment without a trainer (two would fence each other endlessly), an explorer the experiment
    with the fewest explorers; among several, the first one able to proceed.
    """
    if role == "trainer":
        free = [crew for crew in crews if not crew.trainers]
        best = min(free, key=lambda crew: (not crew.running, crew.idle(role)), default=None)
    else:
        free = [crew for crew in crews if crew.explores]
        best = min(free, key=lambda crew: (not crew.running, crew.explorers, not crew.trainers), default=None)
    return best.experiment if best is not None else None


def stranded(role: str, experiment: UUID, crews: Sequence[Crew]) -> bool:
    """True if a worker of the role only waits in `experiment`, while another experiment lacks nothing but this role.

    A trainer leaves a paused experiment for any without a trainer, because explorers follow later.
    """
    current = next((crew for crew in crews if crew.experiment == experiment), None)
    if current is None or not current.idle(role):
        return False
    other_crews = [crew for crew in crews if crew is not current]
    if role == "trainer" and not current.running:
        return any(crew.running and not crew.trainers for crew in other_crews)
    return any(crew.lacks(role) for crew in other_crews)


class Crews:
    """Follows the workers joining and leaving the experiments of a log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._feed: Feed | None = None
        self._fences = FenceView(midway=True)
        self._rosters: dict[UUID, Roster] = {}

    async def of(self, experiments: Sequence[Entry]) -> list[Crew]:
        """Returns the present workers of these running experiments, after reading the log to its end."""
        if experiments:
            await self._catch_up(experiments)
        return [self._crew(experiment) for experiment in experiments]

    async def close(self) -> None:
        """Ends the subscription to the log's stream of workers."""
        if self._feed is not None:
            await self._feed.close()

    def _crew(self, experiment: Entry) -> Crew:
        live = self._rosters.get(experiment.id, Roster()).live.values()
        return Crew(
            experiment=experiment.id,
            running=experiment.status is Status.RUNNING,
            explores=any(stage.kind != "train" for stage in experiment.spec.stages),
            trainers=sum(started.role == "trainer" for started in live),
            explorers=sum(started.role == "explorer" for started in live),
        )

    async def _catch_up(self, experiments: Iterable[Entry]) -> None:
        """Reads up to the current head; workers of an experiment begun later are recorded above the position read."""
        if self._feed is None:
            starts = [
                await beginning_of(self._log, experiment.id, spine_offset=experiment.spine_offset)
                for experiment in experiments
            ]
            # From the earliest start: the stream of workers is one partition for all experiments, read once.
            start = min(start_point.positions.get(_WORKERS, 0) for start_point in starts)
            self._feed = Feed(self._log.subscribe({_WORKERS: start}))
        heads = await self._log.heads()
        goal = heads[_WORKERS].next_offset if _WORKERS in heads else 0
        while self._feed.positions[_WORKERS] < goal:
            await self._feed.pump(1.0, self._apply)

    def _apply(self, record: Record) -> None:
        decoded = effective(record, self._fences, lambda head: head.experiment is not None)
        if decoded is not None and decoded.head.experiment is not None:
            self._rosters.setdefault(decoded.head.experiment, Roster()).apply(decoded)


MAX_POLL_INTERVAL_S: Final = 1.0
"""Maximum seconds between two searches for an experiment by a worker without one."""
WATCH_S: Final = 5.0
"""Seconds between two checks whether another experiment needs the worker more."""
STRANDED_TIMEOUT_S: Final = {"trainer": 10.0, "explorer": 30.0}
"""Seconds, by role, for which a worker has to be stranded before leaving; different, lest trainer and explorers swap
places.
"""


class ExternalWorker:
    """A worker started as `rftd worker explorer|trainer` without naming an experiment; `run` works until
    `stop` is set.
    """

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
        """`process` is the process running the worker; None: the current one.

        Experiments whose folders belong to a log other than `identity` are left to that log.
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
        """Works on one experiment after another until `stop` is set. Raises the error that ended the work on one."""
        standing_by: list[UUID] = []
        try:
            while not stop.is_set():
                await self._registry.catch_up()
                experiments = await asyncio.to_thread(self._ours, self._registry.under_way())
                best = choose(self._role, await self._crews.of(experiments))
                if best is not None:
                    await self._work(next(experiment for experiment in experiments if experiment.id == best), stop)
                    continue
                if experiments and standing_by != (ids := [experiment.id for experiment in experiments]):
                    standing_by = ids
                    self._logger.info("worker.standby", experiments=[str(id) for id in ids])
                await self._registry.pump(MAX_POLL_INTERVAL_S)
        finally:
            await self._registry.close()
            await self._crews.close()

    def _ours(self, experiments: Iterable[Entry]) -> list[Entry]:
        identity = self._identity
        return [
            experiment
            for experiment in experiments
            if identity is None or not is_of_another(Path(experiment.job_dir), identity)
        ]

    async def _work(self, experiment: Entry, stop: asyncio.Event) -> None:
        """Works until the experiment ends or is released, `stop` is set, or the worker is more useful elsewhere."""
        self._logger.info("worker.experiment", experiment=str(experiment.id))
        run = run_trainer if self._role != "explorer" else partial(run_explorer, slot=self._slot)
        leave = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(experiment, stop, leave))
                try:
                    await run(
                        self._log,
                        experiment.id,
                        stop=leave,
                        clock=self._clock,
                        ids=self._ids,
                        logger=self._logger,
                        spine_offset=experiment.spine_offset,
                        process=self._process,
                        tracer=self._tracer,
                    )
                finally:
                    # The watch never ends while the work continues; without the cancellation the task group would wait
                    # for ever.
                    watch.cancel()
        except BaseExceptionGroup as group:
            # The task group's wrapping would hide the error's class, which determines the exit status of the process.
            raise next(iter(leaves(group))) from None

    async def _watch(self, experiment: Entry, stop: asyncio.Event, leave: asyncio.Event) -> None:
        """Sets `leave` once `stop` is set, the experiment is released, or the worker has been stranded for a while."""
        since_s: float | None = None
        while not await self._stopped_within(stop, WATCH_S):
            now_s = self._clock.monotonic_s()
            try:
                idle = await self._stranded(experiment)
            except RftdError as error:  # the working task meets the error as well, and handles it
                end_if_cancelled()
                self._logger.warning("worker.watch_failed", code=error.code, reason=error.what)
                idle = False
            # Queued counts as released: after an immediate resume, a worker that missed the release would wait for the
            # next turn.
            if experiment.spine.released or experiment.spine.status is Status.QUEUED:
                self._logger.info("worker.released", experiment=str(experiment.id))
                break
            since_s = (since_s if since_s is not None else now_s) if idle else None
            if since_s is not None and now_s - since_s >= STRANDED_TIMEOUT_S[self._role]:
                self._logger.info("worker.gives_way", experiment=str(experiment.id))
                break
        leave.set()

    async def _stranded(self, experiment: Entry) -> bool:
        await self._registry.catch_up()
        experiments = await asyncio.to_thread(self._ours, self._registry.under_way())
        return len(experiments) > 1 and stranded(self._role, experiment.id, await self._crews.of(experiments))

    async def _stopped_within(self, stop: asyncio.Event, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await stop.wait()
        except TimeoutError:
            return False
        return True
