"""`Trainer`: the trainer process. It joins, takes the trainer's lease, and runs the training loop under it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from rftd.ops.logs import Logger
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.log import topics
from rftd.streams.log.fencing import Role
from rftd.streams.log.follower import Follower
from rftd.streams.log.role import RoleLease
from rftd.streams.log.spine_digest import SpineDigest, follow_digest
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.device_turn import DeviceTurn
from rftd.workers.hosts.membership import Membership
from rftd.workers.learning.engine import RemoteEngine, RestingEngine, TrainerEngine
from rftd.workers.models.worker_folders import check_folders
from rftd.workers.training.execution import Execution
from rftd.workers.training.loop import TrainingLoop
from rftd.workers.training.publishing import Publisher
from rftd.workers.training.saving import Saver
from rftd.workers.training.step_log import StepLog
from rftd.workers.training.training_traces import PlanTraces, TrainingTraces


class Trainer:
    """The trainer process of one experiment. All engine calls happen on `thread`, one at a time."""

    def __init__(
        self,
        member: Membership,
        follower: Follower,
        state: RunState,
        engine: TrainerEngine,
        *,
        thread: Executor,
        log: Logger,
        submitted: int = 0,
        plans: PlanTraces | None = None,
    ) -> None:
        """`submitted` is the offset of the submission on the spine; `plans` has the trace contexts of plans."""
        self._member = member
        self._follower = follower
        self._state = state
        self._engine = engine
        self._thread = thread
        self._log = log
        self._submitted = submitted
        self._plans = plans
        self._lease: RoleLease | None = None
        self._state_before = WorkerState.LOAD
        """State of the heartbeat before the wait for the engine's service."""

    async def run(self, stop: asyncio.Event) -> None:
        """Works until the experiment ends or `stop` is set, in which case the current step is finished first.

        Raises FencedError after a replacement, whatever the first error: the successor may have removed files in use
        here.
        """
        try:
            await self._run(stop)
        except* Exception:
            if self._lease is not None:
                await self._lease.confirm()
            raise

    async def _run(self, stop: asyncio.Event) -> None:
        """Joins, acquires the lease, and runs the training loop with heartbeats."""
        await self._follower.catch_up()
        spec = self._state.spine.spec
        assert spec is not None
        await self._member.join(0)
        traces = TrainingTraces(self._member.tracer, self._state.experiment, self._plans)
        execution = Execution(
            self._member.log, self._state, spec, self._engine, thread=self._thread, notes_traces=traces.on
        )
        turn = self._device_turn(spec, execution)
        async with asyncio.TaskGroup() as tasks:
            # Heartbeats begin before the lease is acquired and the model is loaded: both take long, and the daemon
            # would count a silent worker as lost.
            beat = tasks.create_task(self._member.beat(self._look))
            try:
                await asyncio.to_thread(partial(check_folders, spec, trains=True))
                lease = self._lease = await self._acquire()
                tasks.create_task(execution.watch())
                loop = TrainingLoop(
                    member=self._member,
                    follower=self._follower,
                    state=self._state,
                    lease=lease,
                    digest=await self._follow_spine(),
                    execution=execution,
                    publisher=self._publisher(lease, spec, traces),
                    saver=self._saver(lease, spec),
                    turn=turn,
                    log=self._log,
                    steps=StepLog(self._log, self._member.clock),
                    traces=traces,
                    stop=stop,
                )
                await loop.run(tasks)
            finally:
                beat.cancel()
                # Closing the turn ends its locks: by then the engine has freed the memory for loading by rollouts.
                await execution.call(self._engine.close)
                if turn is not None:
                    turn.close()

    def _publisher(self, lease: RoleLease, spec: ExperimentSpec, traces: TrainingTraces) -> Publisher:
        """Returns the publisher of weights under the lease."""
        return Publisher(
            self._engine,
            lease,
            self._state,
            spec,
            self._thread,
            log=self._log,
            clock=self._member.clock,
            failures=self._member.pulse.sync_failures,
            traces=traces,
        )

    def _saver(self, lease: RoleLease, spec: ExperimentSpec) -> Saver:
        """Returns the writer of checkpoints under the lease."""
        member = self._member
        return Saver(self._engine, lease, self._state, spec, log=member.log, thread=self._thread, clock=member.clock)

    def _look(self) -> None:
        """Shows a wait for the engine's service in the heartbeat, and restores the state before it afterwards."""
        pulse = self._member.pulse
        if not isinstance(self._engine, RemoteEngine):
            return
        if self._engine.waits_for and pulse.state != WorkerState.WAIT_SERVICE:
            self._state_before = pulse.state
            pulse.state = WorkerState.WAIT_SERVICE
        elif not self._engine.waits_for and pulse.state == WorkerState.WAIT_SERVICE:
            pulse.state = self._state_before

    def _device_turn(self, spec: ExperimentSpec, execution: Execution) -> DeviceTurn | None:
        """Returns the turns with rollouts on one device, if any stage requires them."""
        if not any(stage.turns for stage in spec.stages):
            return None
        turn = DeviceTurn(Path(spec.job_dir), self._member.clock)
        if isinstance(self._engine, RestingEngine):
            turn.share(_OnThread(execution, self._engine))
        return turn

    async def _follow_spine(self) -> SpineDigest:
        """Returns the digest of the spine as read by this process, up to date from now on."""
        spine = self._state.spine
        # A trainer of an experiment without a step digests the spine from the beginning; a later one continues from the
        # mark of the newest step or checkpoint.
        fresh = spine.furthest == (spine.forked.at_step if spine.forked is not None else 0)
        begin = self._submitted if fresh else None
        return await follow_digest(self._member.log, self._follower, self._state.experiment, spine.mark, begin=begin)

    async def _acquire(self) -> RoleLease:
        """Acquires the trainer's lease, by fences on its three partitions."""
        experiment = self._state.experiment
        return await RoleLease.acquire(
            self._member.log,
            self._follower,
            role=Role(experiment, "trainer"),
            partitions=[
                partition_of(stream, experiment) for stream in (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)
            ],
            owner=self._member.id,
            clock=self._member.clock,
            ids=self._member.ids,
        )


class _OnThread:
    """Frees and occupies a shared device between two turns, by calls on the engine's own thread."""

    def __init__(self, execution: Execution, engine: RestingEngine) -> None:
        """Calls `engine` on the thread of `execution`."""
        self._execution = execution
        self._engine = engine

    async def rest(self) -> None:
        """Moves the engine's state off the device."""
        await self._execution.call(self._engine.rest)

    async def wake(self) -> None:
        """Moves the engine's state back to the device."""
        await self._execution.call(self._engine.wake)
