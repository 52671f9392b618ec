"""`Run`: one running experiment: planner, dispatcher and controller decide on one fold, and each appends under its own
lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from rftd.daemon.run.dlq.verdicts import task_retried
from rftd.daemon.run.supervisor.collector import tidy
from rftd.daemon.run.supervisor.decision_writer import DecisionWriter
from rftd.daemon.run.supervisor.disk_guard import DiskGuard
from rftd.daemon.run.supervisor.hosting import TICK_S, Tending
from rftd.daemon.run.supervisor.inbox import Inbox, Request, check_command
from rftd.daemon.run.supervisor.loss_check import Survivors
from rftd.daemon.run.supervisor.milestones import tell
from rftd.daemon.run.supervisor.parts import Parts
from rftd.daemon.run.supervisor.release import release_is_due
from rftd.daemon.run.supervisor.snapshotter import Snapshotter
from rftd.daemon.run.why.run_snapshot import Phase
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.serve.reconnecting import UNREACHABLE_ERRORS
from rftd.daemon.trust.allowances import NOTHING_MORE, Allowances
from rftd.ops import limits
from rftd.ops.clock import Clock, RecordedClock
from rftd.ops.errors import FencedError, LogLossError, UnreachableError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.ops.tracing.tracer import Tracer
from rftd.storage.files.resume import snapshots_of
from rftd.streams.events.experiment import ExperimentReleased, ExperimentSeen
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TaskRetried
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.decision import Decision
from rftd.streams.log.envelope import Position
from rftd.streams.log.fencing import Role
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import RoleLease
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.split_submission import ROLES
from rftd.workers.control.budgets import reader_record_is_due
from rftd.workers.control.deciders import Deciders
from rftd.workers.control.hold import Trouble, trouble_of_decision
from rftd.workers.hosts.executor import Executor

GATHER_S = 0.01
"""Minimum seconds between two turns: a turn costs more than a record, so records arriving meanwhile share one."""
POLL_INTERVAL_S = 0.5
"""Seconds between two updates of the waits; whether a snapshot is due is looked at in every turn."""


class Run(Tending):
    """Drives one experiment from its start, when a slot is free, to its end."""

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
        lost_after_s: float = limits.WORKER_LOST_AFTER_S,
        release_after_s: float = limits.RELEASE_AFTER_S,
        roles: frozenset[str] = ROLES,
        spine_offset: int = 0,
        guard: DiskGuard | None = None,
        survivors: Survivors | None = None,
        tracer: Tracer | None = None,
        allowances: Allowances = NOTHING_MORE,
        led: set[UUID] | None = None,
    ) -> None:
        """`owner` is the daemon's id in leases. Workers of the `roles` are started here, and lost `lost_after_s`
        seconds after their last sign of life. `spine_offset` is the offset of the submission, or below.

        Without a `guard` disk space is not checked. `survivors` are heard before the first append. Workers are
        released `release_after_s` seconds into a pause ended only by a person. `led` are the experiments already
        decided on by this daemon; newly led ones are added.
        """
        super().__init__(
            log,
            experiment,
            executor,
            owner=owner,
            # All decisions go by this clock.
            clock=RecordedClock(clock, lambda: self.state.spine.recorded_ns),
            ids=ids,
            logger=logger,
            roles=roles,
            lost_after_s=lost_after_s,
            spine_offset=spine_offset,
            allowances=allowances,
        )
        self._guard = guard  # of free disk space, or None
        self._survivors = survivors  # the check of the heads remembered by this run, or None
        self._parts = Parts(clock, allowances, starts=bool(roles))
        """Check of permissions and plug-ins."""
        self._led_experiments = set[UUID]() if led is None else led
        """Experiments for which this daemon has held the controller's lease before."""
        self._spine = partition_of(topics.EXPERIMENTS, experiment)
        """Partition of the experiment's life events."""
        self._owner = owner  # the daemon's id in leases
        self._wall = clock
        """The machine's clock, for the times of files."""
        self._ids = ids
        self._release_after_s = release_after_s  # from the beginning of a pause
        self.releasing = False
        """True once the workers are asked to leave, during a pause that only a person can end."""
        self._deciders = Deciders(self.state, self._liveness, starts=roles, columns=self._parts.columns.of)
        """Controller, planner and dispatcher."""
        self._inbox = Inbox(experiment, lambda event: check_command(self.state, event))
        """Commands waiting for the controller."""
        self._looked_s = self._turn_s = 0.0
        """Monotonic times: of the last update of the waits, and of the last gathering of records."""
        self._trouble: Trouble | None = None
        """First trouble of a role or worker, kept until the experiment is paused; None: no trouble."""
        self._last_logged_reason = ""
        """Reason of the trouble logged last, so that a lasting trouble is logged once."""
        self._reader_to_record = ""
        """Name of the last reader not yet recorded in the log; empty if there is no reader to record."""
        self._writer = DecisionWriter(experiment, clock=self._clock, wall=clock, logger=logger, tracer=tracer)
        """Appender of the roles' decisions."""

    async def drive(self) -> None:
        """Runs the experiment; returns when it has ended or is released and its workers have ended.

        Cancelling leaves the workers running. Raises FencedError if another daemon took the experiment over.
        """
        try:
            await self._drive()
        finally:
            self._inbox.close()
            self._leaving.set()
            self._gone.set()

    async def _drive(self) -> None:
        """Folds the log, checks for losses, leads the experiment to its end or release, and closes the follower.

        Raises FencedError if another daemon took the experiment over, LogLossError after ending the workers of a log
        that lost records.
        """
        beginning = await self._read_beginning()
        job = Path(beginning.spec.job_dir)
        follower = await self._open_follower(beginning, owner=True)
        try:
            await follower.catch_up()
            # Before this run's first appends, its fences: an append hides the size of a loss.
            self._phase = Phase.LOSS_CHECK
            if self._survivors is not None:
                await self._survivors.hear(self.state)
            snapshots = snapshots_of(beginning.spec)
            self._snapshotter = Snapshotter(self.state, follower, snapshots, clock=self._clock, logger=self._logger)
            if self._guard is not None:
                await self._guard.attend(job, self._need_bytes)
            await self._lead(follower)
        except LogLossError:
            await self._end_workers_of_lost_log(beginning, follower, "the daemon that ran it")
            raise
        finally:
            if self._guard is not None:
                self._guard.leave(job)
            await follower.close()

    def waits(self) -> list[Wait]:
        """Returns the waits of each role at this moment."""
        snapshot = self._watch.snapshot(self._phase, self._deciders.last, appends_since_s=self._writer.appending_s)
        return self._watch.waits(snapshot)

    def _need_bytes(self) -> int:
        """Returns the size of the newest checkpoint and weights: workers may write that much before a pause acts."""
        saved = next(reversed(self.state.checkpoints.values()), None)
        published = next(reversed(self.state.weights.published.values()), None)
        return (saved.size_bytes if saved else 0) + (published.size_bytes if published else 0)

    async def _present_trouble(self) -> Trouble | None:
        """Returns the trouble that pauses or ends the experiment: an error, no space, a missing permission or plug-in;
        None without trouble.

        An error of the check for parts is noted and logged as trouble of the controller.
        """
        if self._trouble is not None:
            return self._trouble
        if self._guard is not None and self._guard.shortage is not None:
            return self._guard.shortage
        spine = self.state.spine
        if spine.spec is None:
            return None
        try:
            return await self._parts.missing(spine.spec, spine.stage, spine.environment, spine.grants)
        except Exception as error:
            return self._note_trouble("controller", error)

    def _note_trouble(self, role: str, error: BaseException) -> Trouble:
        """Returns the trouble of a role's error, logged once; it concerns only this experiment."""
        trouble = trouble_of_decision(role, error)
        if trouble.reason != self._last_logged_reason:  # the error may recur in each turn
            self._last_logged_reason = trouble.reason
            self._logger.error("run.error", experiment=str(self.state.experiment), role=role, exc_info=error)
        self._trouble = self._trouble or trouble
        return trouble

    async def _look(self) -> None:
        """Writes due snapshots and updates the waits; errors here are logged and do not end the run."""
        try:
            await self._snapshotter.look()
            if (now_s := self._clock.monotonic_s()) - self._looked_s >= POLL_INTERVAL_S:
                self._looked_s = now_s
                self.waits()
        except Exception as error:
            self._logger.error("run.look_failed", experiment=str(self.state.experiment), exc_info=error)

    async def command(self, event: Event, request: Request) -> Position:
        """Appends a command under the controller's lease.

        Raises ConflictError if the command is illegal, UnreachableError if this run does not decide any more.
        """
        position = await self._inbox.ask(event, request)
        tell(self._logger, self.state.experiment, [event])
        return position

    @property
    def is_watched(self) -> bool:
        """True if `limits.unseen_days` is set: the experiment pauses after that many days without a reader."""
        spec = self.state.spine.spec
        return spec is not None and spec.limits.unseen_days is not None

    def looked(self, by: str) -> None:
        """Notes `by` as the reader to be recorded in the next turn, if `limits.unseen_days` is set, the experiment
        runs, and the last recorded reader is long ago.
        """
        if reader_record_is_due(self.state, self._clock.now_ns()):
            self._reader_to_record = by

    async def retry(self, task: FailedTask, request: Request, *, by: str, reason: str) -> Position:
        """Leases a failed task once more, for the person `by`. Raises ConflictError if its experiences would be too old
        to train.
        """
        return await self.command(self.retry_event(task, by=by, reason=reason), request)

    def retry_event(self, task: FailedTask, *, by: str, reason: str) -> TaskRetried:
        """Builds the event of a retry. Raises UnreachableError before the run has read its stage."""
        spine = self.state.spine
        if spine.spec is None or spine.stage < 0:
            raise UnreachableError("the run is being restarted", fix="ask again in a moment")
        return task_retried(self.state, task, by=by, reason=reason)

    async def _lead(self, follower: Follower) -> None:
        """Acquires the leases of the roles, then decides, appends and tends workers turn by turn, until the end or a
        release.
        """
        state = self.state
        spine = self._spine
        tasks = [partition for partition in follower.positions if partition.stream == topics.TASKS]
        self._phase = Phase.FENCING
        controller = await self._acquire(follower, "controller", [spine])
        self._led_experiments.add(state.experiment)
        planner = await self._acquire(follower, "planner", [spine])
        dispatcher = await self._acquire(follower, "dispatcher", [spine, *tasks])
        assert state.spine.spec is not None
        fleet = self._fleet
        # Workers are adopted once all roles are fenced: the former daemon can decide nothing about them any more.
        fleet.take_up(state.spine.spec)
        fleet.seek_opening()
        deciders = self._deciders
        clock = self._clock
        wait_s = TICK_S
        self._phase = Phase.LEADING
        while not (self._stopping or state.spine.ended or self.releasing):
            await self._gather(follower, wait_s)
            await self._look()
            if self._survivors is not None:
                await self._survivors.compare_older_heads()
            await self._inbox.obey(controller)
            # Commands first: a resume of this turn has to reach the controller before its look for trouble.
            if self._reader_to_record:
                await self._writer.write(
                    controller, "controller", [Decision(ExperimentSeen(by=self._reader_to_record))]
                )
                self._reader_to_record = ""
            trouble = await self._present_trouble() or fleet.stalled()
            due = deciders.control(trouble, self._clock.now_ns())
            await self._writer.write(controller, "controller", due)
            if state.spine.status is Status.PAUSED:
                self._trouble = None
            await self._tend(follower, start=trouble is None and state.spine.status is not Status.PAUSED)
            dispatched = await self._decide(dispatcher, "dispatcher", lambda: deciders.dispatch(clock.monotonic_s()))
            # The dispatcher's decisions are folded by now: groups just closed can be in this turn's plans.
            planned = await self._decide(planner, "planner", lambda: deciders.plan(follower.positions, clock.now_ns()))
            if self._trouble is not None:
                deciders.renew()
            wait_s = GATHER_S if dispatched or planned else TICK_S
            now_ns = self._clock.now_ns()
            self.releasing = not fleet.seeks and release_is_due(state, self._liveness, now_ns, self._release_after_s)
        self._leaving.set()
        self._inbox.close()
        self._phase = Phase.DRAINING
        # The workers' last records are read before the snapshot: the next daemon starts with it.
        await fleet.drain()
        await follower.catch_up()
        if self.releasing and not self._stopping:
            # Only now: an experiment recorded as released has no worker left for the next daemon to end.
            await self._tend(follower, start=False)
            await self._writer.write(controller, "controller", [Decision(ExperimentReleased())])
        await self._snapshotter.end(take=not state.spine.ended)
        if state.spine.ended:
            await tidy(self._log, state, controller, clock=self._wall, logger=self._logger)

    async def _decide(self, lease: RoleLease, role: str, decide: Callable[[], Sequence[Decision]]) -> bool:
        """Appends a role's decisions; True if there were any. An unexpected exception pauses only this experiment."""
        try:
            decided = decide()
            drafted = self._writer.drafted(lease, decided)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a third party's policy may raise anything
            self._note_trouble(role, error)
            return False
        await self._writer.write(lease, role, decided, drafted)
        return bool(decided)

    async def _tend(self, follower: Follower, *, start: bool) -> None:
        """Kills hanging workers, starts due ones (only if `start`), and records the lost ones; an error pauses the
        experiment.
        """
        fleet = self._fleet
        if fleet.ended:
            await follower.catch_up()  # the workers' last records
        try:
            lost = fleet.tend(start=start)
        except (FencedError, *UNREACHABLE_ERRORS):
            raise
        except Exception as error:
            self._note_trouble("daemon", error)
            return
        self._trouble = self._trouble or fleet.trouble
        fleet.trouble = None
        if fleet.met_loss and self._survivors is not None:
            fleet.met_loss = False
            await self._survivors.hear(self.state)
        await self._append_lost(follower, lost)

    async def _gather(self, follower: Follower, wait_s: float) -> None:
        """Folds the records arriving within `wait_s` seconds, and after the first also those of the next `GATHER_S`, to
        share a turn.
        """
        if await follower.pump(wait_s):
            left_s = self._turn_s + GATHER_S - self._clock.monotonic_s()
            if left_s > 0:
                await self._clock.sleep(left_s)
                await follower.pump(0.0)
        self._turn_s = self._clock.monotonic_s()

    async def _acquire(self, follower: Follower, role: str, partitions: Sequence[Partition]) -> RoleLease:
        """Acquires the lease of a role by fencing these partitions against the previous owner.

        Raises FencedError if a rival comes first; as the controller of an experiment led by this daemon before, also if
        another daemon has the role by now, as nothing is taken back from a successor.
        """
        return await RoleLease.acquire(
            self._log,
            follower,
            role=Role(self.state.experiment, role),
            partitions=partitions,
            owner=self._owner,
            clock=self._clock,
            ids=self._ids,
            # A daemon that stood still, or was cut off, takes nothing back from its successor.
            again=role == "controller" and self.state.experiment in self._led_experiments,
        )
