"""One experiment under way: planner, dispatcher and controller decide on one fold; each writes under its own lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from rftd.daemon.run.dlq.verdicts import task_retried
from rftd.daemon.run.supervisor.collector import tidy
from rftd.daemon.run.supervisor.decision_writer import DecisionWriter
from rftd.daemon.run.supervisor.disk_guard import DiskGuard
from rftd.daemon.run.supervisor.hearing import Survivors
from rftd.daemon.run.supervisor.hosting import TICK_S, Tending
from rftd.daemon.run.supervisor.inbox import Inbox, Request, check_command
from rftd.daemon.run.supervisor.milestones import tell
from rftd.daemon.run.supervisor.parts import Parts
from rftd.daemon.run.supervisor.release import release_is_due
from rftd.daemon.run.supervisor.snapshotter import Snapshotter
from rftd.daemon.run.why.scene import Phase
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.serve.patience import AWAY
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
from rftd.workers.control.budgets import look_is_due
from rftd.workers.control.deciders import Deciders
from rftd.workers.control.obstacle import Trouble, of_decision
from rftd.workers.hosts.executor import Executor

GATHER_S = 0.01
"""Least time between two turns: what arrives meanwhile is decided on together, for a turn costs more than a record."""
LOOK_S = 0.5


class Run(Tending):
    """Drives one experiment from its turn to its end."""

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
        """Without a `guard` space is not looked at. `survivors` are heard before the first append.

        Workers are released `release_after_s` after a pause that only a person ends.
        `led` are the experiments that this daemon has decided on before; those that it begins to are added.
        """
        super().__init__(
            log,
            experiment,
            executor,
            owner=owner,
            # All that is decided goes by this one (rule 9).
            clock=RecordedClock(clock, lambda: self.state.spine.recorded_ns),
            ids=ids,
            logger=logger,
            roles=roles,
            lost_after_s=lost_after_s,
            spine_offset=spine_offset,
        )
        self._guard = guard
        self._survivors = survivors
        self._parts = Parts(clock, allowances, starts=bool(roles))
        self._led = set[UUID]() if led is None else led
        self._spine = partition_of(topics.EXPERIMENTS, experiment)
        self._owner = owner
        self._wall = clock
        """The machine's clock, for the times of files."""
        self._ids = ids
        self._release_after_s = release_after_s
        self.releasing = False
        """True once its workers are asked to leave, since it is paused until a person resumes it."""
        self._deciders = Deciders(self.state, self._liveness, starts=roles, columns=self._parts.columns.of)
        self._inbox = Inbox(experiment, lambda event: check_command(self.state, event))
        self._looked_s = self._turn_s = 0.0
        self._trouble: Trouble | None = None
        """The error that a role met since the controller decided last."""
        self._told = ""
        self._onlooker = ""
        """The name of the last reader whose look is still to be recorded; empty: no look is due."""
        self._writer = DecisionWriter(experiment, clock=self._clock, wall=clock, logger=logger, tracer=tracer)

    async def drive(self) -> None:
        """Returns when the experiment has ended, or is released, and its workers are gone.

        Cancelling leaves the workers running.

        Raises FencedError if another daemon took the experiment over.
        """
        try:
            await self._drive()
        finally:
            self._inbox.close()
            self._leaving.set()
            self._gone.set()

    async def _drive(self) -> None:
        beginning = await self._beginning()
        job = Path(beginning.spec.job_dir)
        follower = await self._followed(beginning, owner=True)
        try:
            await follower.catch_up()
            # Before this run's first append, which are its fences: an append hides how much was lost.
            self._phase = Phase.HEARING
            if self._survivors is not None:
                await self._survivors.hear(self.state)
            snapshots = snapshots_of(beginning.spec)
            self._snapshotter = Snapshotter(self.state, follower, snapshots, clock=self._clock, logger=self._logger)
            if self._guard is not None:
                await self._guard.attend(job, self._need_bytes)
            await self._lead(follower)
        except LogLossError:
            await self._met_loss(beginning, follower, "the daemon that ran it")
            raise
        finally:
            if self._guard is not None:
                self._guard.leave(job)
            await follower.close()

    def waits(self) -> list[Wait]:
        """The waits of each role, as they are now."""
        scene = self._watch.scene(self._phase, self._deciders.said, appends_since_s=self._writer.appending_s)
        return self._watch.waits(scene)

    def _need_bytes(self) -> int:
        """The bytes of a checkpoint and weights like the newest: workers may write them before a pause takes effect."""
        saved = next(reversed(self.state.checkpoints.values()), None)
        published = next(reversed(self.state.weights.published.values()), None)
        return (saved.size_bytes if saved else 0) + (published.size_bytes if published else 0)

    async def _in_the_way(self) -> Trouble | None:
        """The trouble that the experiment has to pause for: an error, no space, or a part that is not installed."""
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
            return self._befallen("controller", error)

    def _befallen(self, role: str, error: BaseException) -> Trouble:
        """The trouble that an error of a role means, logged once; it is this experiment's affair alone."""
        trouble = of_decision(role, error)
        if trouble.reason != self._told:  # it may be met again in each turn
            self._told = trouble.reason
            self._logger.error("run.error", experiment=str(self.state.experiment), role=role, exc_info=error)
        self._trouble = self._trouble or trouble
        return trouble

    async def _look(self) -> None:
        """Keeps a snapshot, and notes who waits for what: that must not change what becomes of the run."""
        try:
            await self._snapshotter.look()
            if (now_s := self._clock.monotonic_s()) - self._looked_s >= LOOK_S:
                self._looked_s = now_s
                self.waits()
        except Exception as error:
            self._logger.error("run.look_failed", experiment=str(self.state.experiment), exc_info=error)

    async def command(self, event: Event, request: Request) -> Position:
        """Appends what the owner wishes, under the controller's lease.

        Raises ConflictError if it is illegal, UnreachableError if this run does not decide any more.
        """
        position = await self._inbox.ask(event, request)
        tell(self._logger, self.state.experiment, [event])
        return position

    @property
    def is_watched(self) -> bool:
        """True if it pauses when nobody looks at it."""
        spec = self.state.spine.spec
        return spec is not None and spec.limits.unseen_days > 0

    def looked(self, by: str) -> None:
        """Notes that somebody looks at the experiment, if it asks for that and nobody has for a while."""
        if look_is_due(self.state, self._clock.now_ns()):
            self._onlooker = by

    async def retry(self, task: FailedTask, request: Request, *, by: str, reason: str) -> Position:
        """Gives a failed task out once more. Raises ConflictError if nothing of it can be trained any more."""
        spine = self.state.spine
        if spine.spec is None or spine.stage < 0:
            raise UnreachableError("the run is being taken up anew", fix="ask again in a moment")
        return await self.command(task_retried(self.state, task, by=by, reason=reason), request)

    async def _lead(self, follower: Follower) -> None:
        state = self.state
        spine = self._spine
        tasks = [partition for partition in follower.positions if partition.stream == topics.TASKS]
        self._phase = Phase.FENCING
        controller = await self._acquire(follower, "controller", [spine])
        self._led.add(state.experiment)
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
                await self._survivors.hear_older()
            await self._inbox.obey(controller)
            # Commands first: a resume of this turn has to reach the controller before it looks for trouble.
            if self._onlooker:
                await self._writer.write(controller, "controller", [Decision(ExperimentSeen(by=self._onlooker))])
                self._onlooker = ""
            trouble = await self._in_the_way() or fleet.stalled()
            due = deciders.control(trouble, self._clock.now_ns())
            await self._writer.write(controller, "controller", due)
            if state.spine.status is Status.PAUSED:
                self._trouble = None
            await self._tend(follower, start=trouble is None and state.spine.status is not Status.PAUSED)
            dispatched = await self._decide(dispatcher, "dispatcher", lambda: deciders.dispatch(clock.monotonic_s()))
            # What was decided is folded by now: groups that just closed can be in this turn's plans.
            planned = await self._decide(planner, "planner", lambda: deciders.plan(follower.positions, clock.now_ns()))
            if self._trouble is not None:
                deciders.renew()
            wait_s = GATHER_S if dispatched or planned else TICK_S
            now_ns = self._clock.now_ns()
            self.releasing = not fleet.seeks and release_is_due(state, self._liveness, now_ns, self._release_after_s)
        self._leaving.set()
        self._inbox.close()
        self._phase = Phase.DRAINING
        # What the workers say when they leave is read before the snapshot: the next daemon starts with it.
        await fleet.drain()
        await follower.catch_up()
        if self.releasing and not self._stopping:
            # Only now: what the log calls released has no worker that the next daemon would have to end.
            await self._tend(follower, start=False)
            await self._writer.write(controller, "controller", [Decision(ExperimentReleased())])
        await self._snapshotter.end(take=not state.spine.ended)
        if state.spine.ended:
            await tidy(self._log, state, controller, clock=self._wall, logger=self._logger)

    async def _decide(self, lease: RoleLease, role: str, decide: Callable[[], Sequence[Decision]]) -> bool:
        """Writes what a role decides; True if there was something. What it raises is trouble of this run alone."""
        try:
            decided = decide()
            drafted = self._writer.drafted(lease, decided)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a third party's policy may raise anything
            self._befallen(role, error)
            return False
        await self._writer.write(lease, role, decided, drafted)
        return bool(decided)

    async def _tend(self, follower: Follower, *, start: bool) -> None:
        """Starts workers that are due, and says which were lost."""
        fleet = self._fleet
        if fleet.ended:
            await follower.catch_up()  # what they said when they left
        try:
            lost = fleet.tend(start=start)
        except (FencedError, *AWAY):
            raise
        except Exception as error:
            self._befallen("daemon", error)
            return
        self._trouble = self._trouble or fleet.trouble
        fleet.trouble = None
        if fleet.met_loss and self._survivors is not None:
            fleet.met_loss = False
            await self._survivors.hear(self.state)
        await self._tell_lost(follower, lost)

    async def _gather(self, follower: Follower, wait_s: float) -> None:
        """Folds what arrives within `wait_s`, and what follows it until the next turn is due."""
        if await follower.pump(wait_s):
            left_s = self._turn_s + GATHER_S - self._clock.monotonic_s()
            if left_s > 0:
                await self._clock.sleep(left_s)
                await follower.pump(0.0)
        self._turn_s = self._clock.monotonic_s()

    async def _acquire(self, follower: Follower, role: str, partitions: Sequence[Partition]) -> RoleLease:
        return await RoleLease.acquire(
            self._log,
            follower,
            role=Role(self.state.experiment, role),
            partitions=partitions,
            owner=self._owner,
            clock=self._clock,
            ids=self._ids,
            # A daemon that stood still, or was cut off, takes nothing back from the one that came after it.
            again=role == "controller" and self.state.experiment in self._led,
        )
