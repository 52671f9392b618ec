"""`Explorer`: the loop of the explorer process: takes leases of its slot, runs their rollouts, and loads
new weights.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import RolloutError, WorkError
from rftd.ops.logs import Logger
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.task import EvalLeased, GroupLeased, TaskLeased
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.log.follower import Follower
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.datasets.added import leased_tasks
from rftd.workers.datasets.stage_tokenizer import stage_tokenizer
from rftd.workers.datasets.taskset import OpenTasksets
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.devices.device_turn import DeviceTurn
from rftd.workers.generation.auxiliary.rollout_models import AuxiliaryModels
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.generation.engine import RolloutEngine, check_lives
from rftd.workers.generation.engine_registry import open_engine
from rftd.workers.hosts.membership import Membership
from rftd.workers.models.worker_folders import check_folders
from rftd.workers.rollout.eval_engine import SHARED, EvalEngine, OwnEngine, SharedEngine
from rftd.workers.rollout.evaluator import Evaluator
from rftd.workers.rollout.leased import HandOver, LeasedRollouts
from rftd.workers.rollout.loader import WeightsLoader
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.processing import GroupProcessing
from rftd.workers.rollout.rollout_log import RolloutLog
from rftd.workers.rollout.rollout_traces import RolloutTraces
from rftd.workers.rollout.rollouts import RolloutPlaces, Rollouts
from rftd.workers.rollout.serving.conversations import Conversations
from rftd.workers.rollout.serving.server import ConversationServer
from rftd.workers.rollout.version_gate import UseKind, VersionGate, WeightsUse
from rftd.workers.rollout.view import ExplorerView
from rftd.workers.weights.channel import as_ref
from rftd.workers.workflows.orphans import Orphans
from rftd.workers.workflows.rewards.line_process import process_environment
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.threads import EngineFromThreads


class Explorer:
    """The explorer process of one experiment, from opening the engine to finishing the last rollout."""

    def __init__(self, member: Membership, follower: Follower, view: ExplorerView, log: Logger) -> None:
        self._member = member
        self._follower = follower
        self._view = view
        self._log = log
        self._gate = VersionGate()
        self._outbox = Outbox(member.log, member.clock)
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._leases: dict[UUID, TaskLeased] = {}
        """Running task leases, to see whether their rollouts only wait for weights."""
        self._tasksets = OpenTasksets(log)
        self._conversations: Conversations | None = None
        """Served conversations, the tasks of a serving stage; None without one."""
        self._rollouts: dict[tuple[int, int], LeasedRollouts] = {}
        """Runner of rollouts by (stage, taskset)."""
        self._engine: RolloutEngine | None = None
        self._auxiliary: AuxiliaryModels | None = None
        self._slots = 0
        self._evaluator: Evaluator | None = None
        self._processing: GroupProcessing | None = None
        self._orphans = Orphans(log)
        self._rollout_log = RolloutLog(log, member.clock)
        tracer = member.tracer
        traces = self._traces = RolloutTraces(tracer, member.experiment, view.trace_of) if tracer is not None else None
        self._hand_over = HandOver(
            member, self._outbox, self._rollout_log, check_lives=self._check_lives, traces=traces
        )
        self._loader = WeightsLoader(member, view, self._gate, self._outbox, log, device=self._device, traces=traces)
        self._joined = False
        self._leaving = False
        self._turn: DeviceTurn | None = None
        self._reward_environ: dict[str, str] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Works until the experiment ends or `stop` is set; then finishes running rollouts within `DRAIN_TIMEOUT_S`
        seconds.
        """
        try:
            # From the start: an engine may take minutes to open, with the worker alive meanwhile. Nothing is leased
            # before the worker joins.
            async with self._member.beating(self._refresh):
                await self._follower.catch_up()
                loops = await self._open_all()
            # Only now, because leases follow: every possible refusal was raised before.
            self._joined = True
            await self._member.join(self._slots)
            self._log.info("explorer.ready", places=self._slots)
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(run()) for run in (self._outbox.run, *loops)]
                background.append(tasks.create_task(self._member.beat(self._refresh)))
                async with asyncio.TaskGroup() as work:
                    await self._take_leases(stop, work)
                    if stop.is_set():
                        await self._drain()
                    # Rollouts not ended by now are given up; the leases expire and are given out again.
                    self._drop(list(self._running))
                await self._outbox.drained(limits.DRAIN_TIMEOUT_S)
                for task in background:
                    task.cancel()
        finally:
            await self._close_all()

    async def _open_all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Opens the engine and everything else that may be refused; returns the loops to run beside the rollouts."""
        spec = self._view.spine.spec
        assert spec is not None
        await asyncio.to_thread(partial(check_folders, spec, trains=False))
        await self._tasksets.copy(spec)
        artifacts = ArtifactStore(Path(spec.job_dir) / "artifacts")
        self._processing = GroupProcessing(self._member, self._outbox, artifacts, self._log)
        await asyncio.to_thread(self._processing.open, spec.stages)
        stage = next((candidate for candidate in spec.stages if candidate.kind != "train"), spec.stages[0])
        exploring = [candidate for candidate in spec.stages if candidate.taskset is not None] or [stage]
        # Before the experiment's own variables, which are for code in this process.
        self._reward_environ = process_environment(os.environ)
        # Before the first engine, workflow or program is started: each of them reads settings from variables.
        os.environ.update(stage.rollout.environment_values)
        # All stages share the engine, so the busiest stage decides the number of slots.
        slots = self._slots = max(explored_stage.rollout.concurrency for explored_stage in exploring)
        for index, stage_spec in enumerate(spec.stages):
            if stage_spec.serving is not None:  # before the engine: a history may be refused, and models take minutes
                promised = partial(self._view.offers.get, index)
                opened = partial(Conversations.open, spec, index, self._member, self._outbox, promised=promised)
                self._conversations = await asyncio.to_thread(opened)
        self._member.pulse.state = WorkerState.OPEN_ENGINE
        engine = self._engine = await open_engine(spec, stage, slots=slots, clock=self._member.clock)
        tokenizer = await asyncio.to_thread(stage_tokenizer, stage)
        if any(stage_spec.turns for stage_spec in spec.stages):
            self._turn = DeviceTurn(Path(spec.job_dir), self._member.clock)
            self._turn.share(engine)
        endpoint = ModelEndpoint(clock=self._member.clock, random_bytes=secrets.token_bytes, tracer=self._member.tracer)
        auxiliary = self._auxiliary = AuxiliaryModels(
            spec, clock=self._member.clock, environ=os.environ, random=SystemRandom(), endpoint=endpoint
        )
        self._processing.serve(auxiliary, tokenizer)
        places = [RolloutPlaces(stage_spec.rollout.concurrency) for stage_spec in spec.stages]
        eval_engine = self._eval_engine(spec, stage, engine)
        shared = isinstance(eval_engine, SharedEngine)
        own_places = RolloutPlaces(limits.EVAL_ROWS_IN_PROGRESS)
        self._evaluator = Evaluator(
            eval_engine,
            tokenizer,
            # Rows sharing the engine share the slots, lest rollouts spend their time-outs in a queue.
            places=lambda index: places[index] if shared else own_places,
            clock=self._member.clock,
            orphans=self._orphans,
            log=self._log,
            endpoint=endpoint,
            auxiliary=auxiliary,
            reward_environ=self._reward_environ,
            artifacts=artifacts,
            confined=spec.reach.restricted,
        )
        server: ConversationServer | None = None
        for index, stage_spec in enumerate(spec.stages):
            if stage_spec.serving is not None:
                assert self._conversations is not None
                server = self._server(stage_spec, self._conversations, engine, tokenizer, places[index])
                continue
            for number, taskset in enumerate(tasksets_of(stage_spec)):
                self._rollouts[index, number] = self._open_rollouts(
                    stage_spec, taskset, spec, engine, tokenizer, auxiliary, places[index]
                )
        served = [server.run] if server is not None else []
        return [partial(self._loader.run, engine), endpoint.run, auxiliary.run, *served]

    async def _close_all(self) -> None:
        """Closes everything opened; the engine's own processes would outlive this one."""
        if self._evaluator is not None:
            await self._evaluator.close()
        if self._engine is not None:
            await self._engine.close()
        if self._turn is not None:
            self._turn.close()
        if self._conversations is not None:
            await asyncio.to_thread(self._conversations.history.close)

    def _open_rollouts(
        self,
        stage: StageSpec,
        taskset: TasksetSpec,
        spec: ExperimentSpec,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        auxiliary: AuxiliaryModels,
        places: RolloutPlaces,
    ) -> LeasedRollouts:
        """Returns the rollouts of one taskset. Raises ConfigError if workflow or reward cannot be opened."""
        runner = WorkflowRunner(
            taskset,
            model=stage.model,
            engine=EngineFromThreads(engine) if stage.rollout.threads_each else engine,
            tokenizer=tokenizer,
            endpoint=auxiliary.endpoint,
            auxiliary=partial(auxiliary.of, stage),
            reward_environ=self._reward_environ,
            sources=stage.sources,
            confined=spec.reach.restricted,
            on_silent_role=self._rollout_log.silent_role,
        )
        runner.check_roles(stage.algorithm.advantage_args.get("rollout_roles", ()))
        rollouts = Rollouts(
            runner,
            stage.rollout,
            places=places,
            clock=self._member.clock,
            orphans=self._orphans,
            device=self._device,
            on_retry=self._rollout_log.tried_again,
        )
        return LeasedRollouts(
            rollouts,
            artifacts=ArtifactStore(Path(spec.job_dir) / "artifacts"),
            seed=spec.seed,
            greedy_rollouts=stage.algorithm.greedy_rollouts,
            sampling=taskset.sampling,
            default_sampling=tasksets_of(stage)[0].sampling,
            trained=stage.kind != "explore",
        )

    def _server(
        self,
        stage: StageSpec,
        conversations: Conversations,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        places: RolloutPlaces,
    ) -> ConversationServer:
        """Returns the server of a serving stage. Raises an RftdError if the port is not available."""
        return ConversationServer(
            stage,
            conversations,
            engine,
            tokenizer,
            gate=self._gate,
            places=places,
            clock=self._member.clock,
            random_bytes=secrets.token_bytes,
            tracer=self._member.tracer,
        )

    def _eval_engine(self, spec: ExperimentSpec, stage: StageSpec, engine: RolloutEngine) -> EvalEngine:
        """Returns the engine for evaluations: the rollouts' own, or a separate one opened at the first evaluation."""
        if stage.rollout.eval_engine == SHARED:
            return SharedEngine(engine, self._gate, self._device)

        async def opened() -> RolloutEngine:
            separate = await open_engine(spec, stage, slots=limits.EVAL_ROWS_IN_PROGRESS, clock=self._member.clock)
            if self._turn is not None:
                self._turn.share(separate)
            return separate

        return OwnEngine(opened, self._device)

    async def _take_leases(self, stop: asyncio.Event, work: asyncio.TaskGroup) -> None:
        """Starts each new lease and drops expired ones, until the experiment ends or `stop` is set."""
        view = self._view
        while not stop.is_set() and not (view.spine.status is not None and view.spine.status.ended):
            await self._follower.pump(wait_s=0.5)
            if view.lost:
                raise WorkError(
                    f"this worker was declared lost: {view.lost}",
                    where=self._member.source,
                    fix="start it again: it joins as a new one",
                )
            try:
                self._check_able()
            except WorkError:
                # The error ends the process, so finished experiences are brought into the log first.
                await self._outbox.drained(limits.DRAIN_TIMEOUT_S)
                raise
            while view.leased:
                lease = view.leased.popleft()
                self._running[lease.lease] = work.create_task(self._work_on(lease))
                if isinstance(lease, TaskLeased):
                    self._leases[lease.lease] = lease
            self._drop(list(view.ended))
            view.ended.clear()
            self._drop([lease for lease, task in self._running.items() if task.done()])
            self._gate.notify()

    def _check_able(self) -> None:
        """Returns if this process can make another rollout. Raises WorkError if that is impossible for good."""
        if self._orphans.too_many:
            raise self._orphans.error()
        # Here too, and not only after failed rollouts: an engine may die without any request under way.
        self._check_lives()

    def _check_lives(self) -> None:
        """Returns if the engines of the rollouts may answer again. Raises WorkError if one has failed for good."""
        if self._engine is not None:
            check_lives(self._engine)
        if self._auxiliary is not None:
            self._auxiliary.check_lives()

    async def _drain(self) -> None:
        """Waits for the running leases, for at most `DRAIN_TIMEOUT_S` seconds."""
        self._leaving = True
        work = [task for task in self._running.values() if not task.done()]
        if work:
            await asyncio.wait(work, timeout=limits.DRAIN_TIMEOUT_S)

    def _drop(self, leases: list[UUID]) -> None:
        """Cancels the work on leases that are over, and forgets them."""
        for lease in leases:
            self._leases.pop(lease, None)
            task = self._running.pop(lease, None)
            if task is not None:
                task.cancel()

    def _work_on(self, lease: TaskLeased | EvalLeased | GroupLeased) -> Coroutine[Any, Any, None]:
        """Returns the work on a lease: rollouts, held-out rows or a group's pipeline."""
        if isinstance(lease, GroupLeased):
            assert self._processing is not None
            return self._processing.run(lease)
        work = partial(self._evaluate, lease) if isinstance(lease, EvalLeased) else partial(self._roll_out, lease)
        return work() if self._traces is None else self._traces.working(lease, work)

    async def _roll_out(self, lease: TaskLeased) -> None:
        """Makes the rollouts of a task lease, once its weights are loaded."""
        if self._conversations is not None:
            await self._conversations.run(lease, self._hand_over.of(lease))
            return
        async with self._gate.using(_weights_use(lease)):
            number, row, tasks = await leased_tasks(self._member, self._view.spine, lease, self._tasksets)
            await self._rollouts[lease.stage, number].run(lease, tasks, self._hand_over.of(lease), row=row)

    def _device(self) -> AbstractAsyncContextManager[None]:
        """Returns the context of the device for one piece of work, if shared with the trainer."""
        return self._turn.rollout() if self._turn is not None else nullcontext()

    async def _evaluate(self, lease: EvalLeased) -> None:
        """Answers the rows of an eval lease, and appends their scores."""
        assert self._evaluator is not None
        stage = self._stage_spec(lease.stage)
        taskset = await self._tasksets.get(stage.evals[lease.taskset], lease.digest)
        published = self._view.weights.published.get((lease.version, lease.generation))
        if published is None:
            self._log.warning("eval.no_weights", version=lease.version, generation=lease.generation)
            return
        spec = self._view.spine.spec
        assert spec is not None
        began_s = self._member.clock.monotonic_s()
        try:
            ref = await asyncio.to_thread(as_ref, published, spec)
        except WorkError as error:
            self._log.warning("eval.failed", error=error.what, version=lease.version)
            return
        try:
            scored = await self._evaluator.score(lease, stage, taskset, ref)
        except RolloutError as error:
            # The lease expires and is given out again; the dispatcher knows which weights still count.
            self._log.warning("eval.failed", error=error.what, version=lease.version)
            return
        if scored.metrics["failed_rows"] and self._auxiliary is not None:
            # The evaluator has checked the answering engine; a row may also have failed because of a judging model.
            self._auxiliary.check_lives()
        draft = self._member.writer.draft(
            scored, experiment=self._member.experiment, key=lease.eval, causation=lease.lease
        )
        await self._outbox.put([draft])
        self._rollout_log.evaluated(scored, stage.evals[lease.taskset], began_s)
        more = lease.row_end < stage.evals[lease.taskset].rows or lease.taskset + 1 < len(stage.evals)
        if more and stage.rollout.eval_engine == SHARED:
            self._loader.linger()

    def _refresh(self) -> None:
        """Updates the heartbeat: leases with progress, tokens, free slots and state."""
        if not self._joined:
            return
        pulse = self._member.pulse
        pulse.leases = tuple(lease for lease in self._running if self._makes_progress(lease))
        if self._engine is not None:
            stats = self._engine.stats()
            pulse.tokens_total = stats.tokens_total
            pulse.free = max(0, self._slots - stats.running)
        pulse.state = self._state()

    def _makes_progress(self, lease: UUID) -> bool:
        """False for a lease only waiting for weights: without renewal, the lease expires and is given out again.

        The first try to load the weights is progress, however long it takes.
        """
        leased = self._leases.get(lease)
        if leased is None or (self._loader.loading and not self._loader.failed):
            return True
        return self._gate.may_begin(_weights_use(leased))

    def _state(self) -> WorkerState:
        """Returns the state for the heartbeat; of several activities the one making progress."""
        if self._leaving:
            return WorkerState.DRAIN
        if self._engine is not None and self._engine.stats().waits_for:
            return WorkerState.WAIT_SERVICE
        if any(rollouts.running for rollouts in self._rollouts.values()) or (
            self._evaluator and self._evaluator.running
        ):
            return WorkerState.BUSY
        if self._turn is not None and self._turn.waiting:
            return WorkerState.WAIT_TURN
        if self._loader.failed:
            return WorkerState.LOAD_FAILED
        if self._loader.loading:
            return WorkerState.LOAD_WEIGHTS
        if self._gate.version < 0:
            return WorkerState.WAIT_WEIGHTS
        return WorkerState.WAIT_VERSION if self._running else WorkerState.WAIT_TASKS

    def _stage_spec(self, index: int) -> StageSpec:
        """Returns the specification of a stage by its index."""
        assert self._view.spine.spec is not None
        return self._view.spine.spec.stages[index]


def _weights_use(lease: TaskLeased) -> WeightsUse:
    """Returns the weights required by the rollouts of a lease, as a use of the gate."""
    return WeightsUse(UseKind.PINNED if lease.pinned else UseKind.ROLLOUT, lease.min_version)
