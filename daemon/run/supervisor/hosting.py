"""`Tending`: state and workers of one experiment in a daemon, whether this daemon or another decides. `Hosting`:
workers of an experiment decided on by another daemon of the same log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from rftd.daemon.run.supervisor.fleet import Fleet
from rftd.daemon.run.why.answer import WaitWatch
from rftd.daemon.run.why.run_snapshot import Phase, RunSnapshot
from rftd.daemon.run.why.under_way import WorkUnderWay
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.serve.reconnecting import UNREACHABLE_ERRORS
from rftd.daemon.trust.allowances import NOTHING_MORE, Allowances
from rftd.ops import limits
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import LogLossError, explain
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.storage.files.resume import resumed_follower
from rftd.streams.events.worker import WorkerLost
from rftd.streams.folds.run_state import RunParts, RunState, partitions_of
from rftd.streams.folds.snapshot import Snapshot
from rftd.streams.folds.spine import Status
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.codec import Writer
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.lost_records import Witness, heads_of
from rftd.streams.log.start import ExperimentStart, beginning_of
from rftd.streams.log.writers import source_of
from rftd.workers.control.liveness import Liveness
from rftd.workers.hosts.executor import Executor
from rftd.workers.hosts.membership import ProcessName, this_process

TICK_S = 0.1
"""Longest wait in seconds for new records in one turn of a run's loop."""
STUCK_S = 4.0
"""Seconds in one turn after which the run's loop counts as waiting for the log."""
RETRY_PAUSE_S: Final = 30.0
"""Pause in seconds before repeatedly failing workers are retried; only the deciding daemon may end the experiment."""


class Tending:
    """One experiment in a daemon that starts its workers: the folded state, and the worker processes."""

    def __init__(
        self,
        log: EventLog,
        experiment: UUID,
        executor: Executor,
        *,
        owner: UUID,
        clock: Clock,
        ids: Ids,
        logger: Logger,
        roles: frozenset[str],
        lost_after_s: float = limits.WORKER_LOST_AFTER_S,
        spine_offset: int = 0,
        allowances: Allowances = NOTHING_MORE,
    ) -> None:
        """Workers of the `roles` are started here. `spine_offset` is the offset of the submission, or below;
        `allowances` are the allow-lists of this daemon.
        """
        self._log = log
        self._allowances = allowances
        self._clock = clock
        self._logger = logger
        self._roles = roles
        self._spine_offset = spine_offset
        self._lost_writer = Writer(source=source_of("daemon", owner), clock=clock, ids=ids)
        """Maker of records about lost workers."""
        self._liveness = Liveness(lost_after_s)
        """Times of the workers' last signs of life."""
        self._stopping = False
        """True once `drain` was called: the loop ends."""
        self._leaving, self._gone = asyncio.Event(), asyncio.Event()
        self._phase = Phase.READING
        """Present phase of the loop, for `rftd why`."""
        self.remembers: Witness | None = None
        """Heads read by this process, for the loss check; set once the log turns out to have lost records,
        else None.
        """
        self.state = RunState(experiment, on_sign_of_life=self._liveness.note)
        """Folded state of the experiment."""
        self._fleet = Fleet(
            self.state,
            executor,
            self._liveness,
            clock=clock,
            ids=ids,
            log=logger,
            roles=roles,
            spine_offset=spine_offset,
        )
        """Worker processes started here."""
        self._watch = WaitWatch(log, self.state, self._liveness, self._fleet.processes, roles=roles, clock=clock)
        """Reader of the waits, with the time at which each began."""

    async def _read_beginning(self) -> ExperimentStart:
        """Reads the experiment's specification and first log positions from its spine."""
        return await beginning_of(self._log, self.state.experiment, spine_offset=self._spine_offset)

    async def _open_follower(self, beginning: ExperimentStart, *, owner: bool = False) -> Follower:
        """Returns the follower of the experiment's partitions, starting at the newest snapshot."""
        experiment = self.state.experiment
        return await resumed_follower(
            self._log,
            self.state,
            beginning,
            experiment=experiment,
            partitions=partitions_of(experiment),
            adopt=self.state.adopt,
            kind=Snapshot[RunParts],
            clock=self._clock,
            logger=self._logger,
            owner=owner,
        )

    async def _end_workers_of_lost_log(self, beginning: ExperimentStart, follower: Follower, witness: str) -> None:
        """Ends the workers of a log with lost records.

        A worker of the previous daemon is known only from the log. Not adopted, it would keep appending over the
        missing records, and on a shared log nothing else prevents that.
        """
        self.remembers = Witness(witness, heads_of(follower.marks()))
        self._fleet.take_up(beginning.spec)
        await self._fleet.drain(0.0)

    async def _append_lost(self, follower: Follower, lost: Sequence[WorkerLost]) -> None:
        """Appends an event for each newly lost worker, and folds the events."""
        if lost:
            drafts = [self._lost_writer.draft(event, experiment=self.state.experiment) for event in lost]
            await follower.reach(await append_when_space(self._log, drafts, clock=self._clock))

    def snapshot(self) -> RunSnapshot:
        """Returns the figures on the experiment's progress at this moment, for `rftd why` and the metrics."""
        return self._watch.snapshot(self._phase)

    def under_way(self) -> WorkUnderWay | None:
        """Returns the unfinished rollouts or held-out rows, with the tokens sampled meanwhile; None without any."""
        return self._watch.under_way(self.snapshot())

    async def drain(self) -> None:
        """Lets the workers finish their work and leave, then returns; the experiment continues at a later start.

        While the log does not answer, workers are ended without appending their end: the next daemon detects and
        records it.
        """
        self._stopping = True
        try:
            async with asyncio.timeout(STUCK_S):
                await self._leaving.wait()
        except TimeoutError:
            # The loop did not come round, so it hangs in a read of the log. Its workers are asked from here; they need
            # no log to end.
            self._logger.warning("drain.log_away", reason="the run waits for the log; its workers are ended")
            await self._fleet.drain(STUCK_S)
            return
        await self._gone.wait()

    async def gone(self) -> None:
        """Returns once all worker processes of the experiment have ended, after its end or after `drain`."""
        await self._gone.wait()


class Hosting(Tending):
    """Runs the workers of some roles for another daemon's experiment: appends no decision and no fence, only ends of
    workers.
    """

    _allowed = True
    """False if this daemon's allow-lists refuse a permission granted to the experiment elsewhere."""

    async def drive(self) -> None:
        """Returns once the experiment has ended or is released, and the workers here have ended.

        Cancelling leaves the workers running.
        """
        experiment = self.state.experiment
        beginning = await self._read_beginning()
        follower = await self._open_follower(beginning)
        try:
            await follower.catch_up()
            await self._judge_grants()
            self._phase = Phase.LEADING
            self._fleet.take_up(self.state.spine.spec or beginning.spec)
            self._fleet.seek_opening()
            while not self._is_over:
                try:
                    await self._tend(follower)
                # These errors are for `Runs`, to rest and take the experiment up anew; every other error is this host's
                # own trouble, and ending with it would leave the workers alone.
                except (LogLossError, *UNREACHABLE_ERRORS):
                    raise
                except Exception as error:
                    # An error raised while a cancellation unwinds takes the place of CancelledError; without this check
                    # the loop would continue after its cancellation.
                    end_if_cancelled()
                    self._logger.error("hosting.failed", experiment=str(experiment), reason=explain(error))
                    await self._wait_before_retry(follower)
            self._leaving.set()
            self._phase = Phase.DRAINING
            await self._fleet.drain()
        except LogLossError:
            await self._end_workers_of_lost_log(beginning, follower, "the daemon that hosted its workers")
            raise
        finally:
            await follower.close()
            self._leaving.set()
            self._gone.set()

    def waits(self) -> list[Wait]:
        """Returns the waits of each role, computed from the log and the local workers as by the deciding daemon."""
        return self._watch.waits(self.snapshot())

    @property
    def _is_over(self) -> bool:
        """True if no worker has to run here: the experiment has ended or is released, or this daemon drains."""
        return self._stopping or self.state.spine.ended or self.state.spine.released

    async def _judge_grants(self) -> None:
        """Compares the permissions granted by the deciding daemon with this daemon's allow-lists, stores the verdict,
        and logs the first refused one.
        """
        grants = self.state.spine.grants
        withdrawn = await asyncio.to_thread(lambda: list(self._allowances.withdrawn(grants)))
        self._allowed = not withdrawn
        for grant in withdrawn[:1]:
            self._logger.error(
                "hosting.not_allowed",
                experiment=str(self.state.experiment),
                reason=f"this daemon's configuration does not allow {grant.value!r}",
                fix=f"allow it under `{grant.kind}`, and restart this daemon",
            )

    async def _tend(self, follower: Follower) -> None:
        """Folds records, and starts and restarts workers, until the experiment ends or is released, or `drain` is
        called.
        """
        fleet = self._fleet
        spine = self.state.spine
        this_host = this_process()
        while not self._is_over:
            await follower.pump(TICK_S)
            if fleet.ended:
                await follower.catch_up()
            lost = fleet.tend(start=self._allowed and spine.status is Status.RUNNING)
            await self._append_lost(follower, [event for event in lost if self._is_mine(event, this_host)])
            if fleet.trouble is not None:
                self._logger.error(
                    "hosting.refused", experiment=str(self.state.experiment), reason=fleet.trouble.reason
                )
                fleet.trouble = None
                await self._wait_before_retry(follower)

    def _is_mine(self, lost: WorkerLost, this_host: ProcessName) -> bool:
        """True if the lost worker runs on this machine, in a role started here."""
        started = self.state.roster.live.get(lost.worker)
        return started is not None and this_host.sees(started) and lost.role in self._roles

    async def _wait_before_retry(self, follower: Follower) -> None:
        """Reads the log for a while without starting workers, so that the experiment's end is still noticed."""
        until_s = self._clock.monotonic_s() + RETRY_PAUSE_S
        while self._clock.monotonic_s() < until_s and not self._is_over:
            await follower.pump(TICK_S)
