"""One experiment under way: planner, dispatcher and controller decide on one fold; each writes under its own lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from rftd.daemon.dlq.verdicts import check_retry, task_retried
from rftd.daemon.supervisor.controller import Controller
from rftd.daemon.supervisor.disk_guard import DiskGuard
from rftd.daemon.supervisor.fleet import Fleet
from rftd.daemon.supervisor.obstacle import Obstacle
from rftd.daemon.supervisor.parts import Parts
from rftd.daemon.supervisor.snapshotter import Snapshotter
from rftd.daemon.supervisor.tagging import check_tag
from rftd.daemon.why.answer import waits_of
from rftd.daemon.why.scene import Phase, Scene
from rftd.daemon.why.tracker import Tracker
from rftd.daemon.why.wait import Wait
from rftd.ops import faults, limits
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, RftdError, UnreachableError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.storage.garbage import garbage, kept_of, ours, remove, remove_empty_memory
from rftd.storage.holdings import kept_in
from rftd.streams import topics
from rftd.streams.codec import Writer
from rftd.streams.envelope import Draft, Position
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import ExperiencePrioritized
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskRetried
from rftd.streams.fencing import Role
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.run_state import RunParts, RunState, partitions_of
from rftd.streams.folds.snapshot import Snapshot
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.follower import Follower
from rftd.streams.halves import ROLES
from rftd.streams.log import EventLog
from rftd.streams.patience import append_when_space
from rftd.streams.role import RoleLease
from rftd.streams.spec import ExperimentSpec
from rftd.streams.start import beginning_of
from rftd.streams.topics import Partition, partition_of
from rftd.workers.dispatcher.decision import Decision
from rftd.workers.dispatcher.dispatcher import Dispatcher
from rftd.workers.dispatcher.liveness import Liveness
from rftd.workers.executors.executor import Executor
from rftd.workers.membership import explain
from rftd.workers.planner.planner import Planner
from rftd.workers.taking_up import resumed_follower, snapshots_of

TICK_S = 0.1
GATHER_S = 0.01
"""Least time between two turns: what arrives meanwhile is decided on together, for a turn costs more than a record."""
LOOK_S = 0.5
STUCK_S = 4.0
"""A run that does not leave its loop for so long waits for the log."""


class Decided(NamedTuple):
    """What one role wants to append."""

    lease: RoleLease
    role: str
    decisions: Sequence[Decision]


class Run:
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
        roles: frozenset[str] = ROLES,
        spine_offset: int = 0,
        guard: DiskGuard | None = None,
    ) -> None:
        """`spine_offset` is where the experiment was submitted, or less. Without a `guard` space is not looked at.

        Workers of the `roles` are started here.
        """
        self._guard = guard
        self._parts = Parts(clock) if roles else None
        self._roles = roles
        self._spine_offset = spine_offset
        self._spine = partition_of(topics.EXPERIMENTS, experiment)
        self._closed_groups = partition_of(topics.TASKS, experiment)
        self._log = log
        self._executor = executor
        self._owner = owner
        self._clock = clock
        self._ids = ids
        self._logger = logger
        self._liveness = Liveness(lost_after_s)
        self._stopping = False
        self._leaving, self._gone = asyncio.Event(), asyncio.Event()
        self._fleet: Fleet | None = None
        self._commands: asyncio.Queue[tuple[Event, UUID, asyncio.Future[Position]]] = asyncio.Queue(64)
        self.state = RunState(experiment, on_heartbeat=self._liveness.note)
        self._phase, self._appending_s = Phase.READING, 0.0
        self._tracker, self._looked_s = Tracker(), 0.0
        self._turn_s = 0.0

    async def drive(self) -> None:
        """Returns when the experiment has ended and its workers are gone; cancelling leaves the workers running.

        Raises FencedError if another daemon took the experiment over.
        """
        experiment = self.state.experiment
        beginning = await beginning_of(self._log, experiment, spine_offset=self._spine_offset)
        job = Path(beginning.spec.job_dir)
        follower = await resumed_follower(
            self._log,
            self.state,
            beginning,
            experiment=experiment,
            partitions=partitions_of(experiment),
            adopt=self.state.adopt,
            kind=Snapshot[RunParts],
            clock=self._clock,
            logger=self._logger,
            owner=True,
        )
        try:
            await follower.catch_up()
            snapshots = snapshots_of(beginning.spec)
            self._snapshotter = Snapshotter(self.state, follower, snapshots, clock=self._clock, logger=self._logger)
            if self._guard is not None:
                await self._guard.attend(job, self._need_bytes)
            await self._lead(follower)
        finally:
            if self._guard is not None:
                self._guard.leave(job)
            await follower.close()
            self._refuse_commands()
            self._leaving.set()
            self._gone.set()

    def waits(self) -> list[Wait]:
        """What each role does or waits for now."""
        now_s, now_ns = self._clock.monotonic_s(), self._clock.now_ns()
        spec = self.state.spine.spec
        scene = Scene(
            name=spec.name if spec is not None else str(self.state.experiment),
            state=self.state,
            liveness=self._liveness,
            processes=self._fleet.processes() if self._fleet is not None else (),
            roles=self._roles,
            phase=self._phase,
            append_s=now_s - self._appending_s if self._appending_s else 0.0,
            failure=self._log.failure,
            now_s=now_s,
            now_ns=now_ns,
        )
        return self._tracker.dated(waits_of(scene), now_ns)

    def _need_bytes(self) -> int:
        """What the workers may write before a pause takes effect: a checkpoint and weights, as large as the newest."""
        saved = [event.size_bytes for event in self.state.checkpoints.values()]
        published = [event.size_bytes for event in self.state.weights.published.values()]
        return sum(sizes[-1] for sizes in (saved, published) if sizes)

    async def _obstacle(self) -> Obstacle | None:
        """What the experiment has to pause for here: there is no space, or a part is not installed."""
        if self._guard is not None and self._guard.shortage is not None:
            return self._guard.shortage
        spine = self.state.spine
        if self._parts is None or spine.spec is None:
            return None
        return await self._parts.missing(spine.spec, spine.stage, spine.environment)

    def _look(self) -> None:
        """Notes who waits for what, so that whoever asks later is told since when."""
        if (now_s := self._clock.monotonic_s()) - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self.waits()

    async def drain(self) -> None:
        """Returns once the workers have finished what is under way and left; the experiment goes on another time.

        If the log is away they are ended without an announcement, which they could not write: the next daemon sees it.
        """
        self._stopping = True
        try:
            async with asyncio.timeout(STUCK_S):
                await self._leaving.wait()
        except TimeoutError:
            self._logger.warning("drain.log_away", reason="the run waits for the log; its workers are ended")
            if self._fleet is not None:
                await self._fleet.drain(STUCK_S)
            return
        await self._gone.wait()

    async def gone(self) -> None:
        """Returns once the run is over and its workers have left."""
        await self._gone.wait()

    async def command(self, event: Event, request_id: UUID) -> Position:
        """Appends what the owner wishes under the controller's lease. Raises ConflictError if it is illegal."""
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        await self._commands.put((event, request_id, answer))
        return await answer

    async def retry(self, task: FailedTask, *, by: str, reason: str, request_id: UUID) -> Position:
        """Gives a failed task out once more. Raises ConflictError if nothing of it can be trained any more."""
        spine = self.state.spine
        if spine.spec is None or spine.stage < 0:
            raise UnreachableError("the run is being taken up anew", fix="ask again in a moment")
        return await self.command(task_retried(self.state, task, by=by, reason=reason), request_id)

    async def _lead(self, follower: Follower) -> None:
        state = self.state
        spine = self._spine
        tasks = [partition for partition in follower.positions if partition.stream == topics.TASKS]
        self._phase = Phase.FENCING
        controller_lease = await self._acquire(follower, "controller", [spine])
        planner_lease = await self._acquire(follower, "planner", [spine])
        dispatcher_lease = await self._acquire(follower, "dispatcher", [spine, *tasks])
        controller, planner = Controller(state), Planner(state)
        dispatcher = Dispatcher(state, self._liveness)
        assert state.spine.spec is not None
        fleet = self._fleet = Fleet(
            state,
            state.spine.spec,
            self._executor,
            self._liveness,
            clock=self._clock,
            log=self._logger,
            roles=self._roles,
            spine_offset=self._spine_offset,
        )
        fleet.adopt()
        writer = Writer(source=f"daemon/{self._owner}", clock=self._clock, ids=self._ids)
        wait_s, self._phase = TICK_S, Phase.LEADING
        while not (self._stopping or state.spine.ended):
            await self._gather(follower, wait_s)
            await self._snapshotter.look()
            self._look()
            await self._obey(controller_lease)
            obstacle = await self._obstacle()
            due = [Decision(event) for event in controller.decide(obstacle)]
            await self._append(Decided(controller_lease, "controller", due))
            try:
                lost = await fleet.tend(start=obstacle is None and not state.spine.cause)
            except RftdError as error:
                failed = life.ExperimentFailed(code=error.code, reason=explain(error), role="daemon")
                await self._append(Decided(controller_lease, "controller", [Decision(failed)]))
                break
            if lost:
                drafts = [writer.draft(event, experiment=state.experiment) for event in lost]
                await follower.reach(await append_when_space(self._log, drafts, clock=self._clock))
            dispatched = dispatcher.decide(self._clock.monotonic_s())
            await self._append(Decided(dispatcher_lease, "dispatcher", dispatched))
            # What was decided is folded by now: groups that just closed can be in this turn's plans.
            plans = planner.decide(follower.positions, self._clock.now_ns())
            await self._append(Decided(planner_lease, "planner", [Decision(event) for event in plans]))
            wait_s = GATHER_S if dispatched or plans else TICK_S
        self._leaving.set()
        self._phase = Phase.DRAINING
        await fleet.drain()
        await follower.catch_up()
        if state.spine.ended:
            await self._tidy(state.spine.spec)
        else:
            await self._snapshotter.take()

    async def _gather(self, follower: Follower, wait_s: float) -> None:
        """Folds what arrives within `wait_s`, and what follows it until the next turn is due."""
        if await follower.pump(wait_s):
            left_s = self._turn_s + GATHER_S - self._clock.monotonic_s()
            if left_s > 0:
                await self._clock.sleep(left_s)
                await follower.pump(0.0)
        self._turn_s = self._clock.monotonic_s()

    async def _tidy(self, spec: ExperimentSpec) -> None:
        """Removes what no event names, now that all is said; while a worker lives elsewhere, it may be its own."""
        if self.state.roster.live:
            return
        found, kept = await asyncio.to_thread(ours, spec), kept_of(self.state)
        if any(each.kind == "artifact" for each in found):  # no fold knows them all
            kept = await kept_in(self._log, self.state.experiment, artifacts=True)
        now_ns = self._clock.now_ns()
        for each in garbage(found, kept, before_ns=now_ns, now_ns=now_ns):
            self._logger.info("garbage.removed", path=each.path, size_bytes=each.size_bytes, reason=each.why)
            await asyncio.to_thread(remove, [each.path])
        await asyncio.to_thread(remove_empty_memory, spec)

    async def _acquire(self, follower: Follower, role: str, partitions: Sequence[Partition]) -> RoleLease:
        return await RoleLease.acquire(
            self._log,
            follower,
            role=Role(self.state.experiment, role),
            partitions=partitions,
            owner=self._owner,
            source=f"daemon/{self._owner}",
            clock=self._clock,
            ids=self._ids,
        )

    async def _append(self, decided: Decided) -> None:
        """Writes what was decided, and folds it."""
        if not decided.decisions:
            return
        faults.point(f"{decided.role}.before_append")
        self._appending_s = self._clock.monotonic_s()
        await decided.lease.append(self._drafts(decided))
        self._appending_s = 0.0
        faults.point(f"{decided.role}.after_append")

    def _drafts(self, decided: Decided) -> list[Draft]:
        writer, experiment = decided.lease.writer, self.state.experiment
        return [
            writer.draft(event, experiment=experiment, partition=partition or self._home(event))
            for event, partition in decided.decisions
        ]

    def _home(self, event: Event) -> Partition:
        return self._closed_groups if isinstance(event, GroupClosed) else self._spine

    async def _obey(self, lease: RoleLease) -> None:
        while not self._commands.empty():
            event, request_id, answer = self._commands.get_nowait()
            try:
                self._check(event)
            except ConflictError as error:
                answer.set_exception(error)
                continue
            draft = lease.writer.draft(event, experiment=self.state.experiment, id=request_id)
            answer.set_result((await lease.append([draft]))[0])

    def _check(self, event: Event) -> None:
        """Raises ConflictError if the event may not follow what there is."""
        if isinstance(event, TaskRetried):
            check_retry(self.state, event)
        elif isinstance(event, ExperiencePrioritized):
            check_tag(self.state, event)
        else:
            check_transition(self.state.spine, event)

    def _refuse_commands(self) -> None:
        while not self._commands.empty():
            event, _, answer = self._commands.get_nowait()
            try:
                self._check(event)
            except ConflictError as error:
                answer.set_exception(error)
            else:
                answer.set_exception(UnreachableError("the run is being taken up anew", fix="ask again in a moment"))


LEGAL: Final[dict[type[Event], tuple[Status, ...]]] = {
    life.ExperimentPaused: (Status.RUNNING,),
    life.ExperimentResumed: (Status.PAUSED,),
    life.ExperimentPrioritized: (Status.SUBMITTED, Status.QUEUED, Status.RUNNING, Status.PAUSED),
    life.ExperimentCancelled: (Status.SUBMITTED, Status.QUEUED, Status.RUNNING, Status.PAUSED),
}


def check_transition(spine: Spine, event: Event) -> None:
    """Raises ConflictError if the event may not follow the state.

    A pause for an obstacle becomes one by command, but no command ends it.
    """
    legal, status = LEGAL[type(event)], spine.status
    if spine.cause and isinstance(event, life.ExperimentPaused):
        return
    if spine.cause and isinstance(event, life.ExperimentResumed):
        raise ConflictError(f"it is paused: {spine.cause}: {spine.reason}", fix="put that right; it goes on by itself")
    if status not in legal:
        verb = type(event).__name__.removeprefix("Experiment").lower()
        raise ConflictError(
            f"it is {status}; only {' or '.join(legal)} can be {verb}", fix="see its state with rftd get"
        )
