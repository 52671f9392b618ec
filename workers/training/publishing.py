"""Publication of weights to explorers: bytes first, then the event; old versions are retired once nothing
needs them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final

import msgspec

from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, RftdError, WorkError
from rftd.ops.logs import Logger
from rftd.ops.tracing import conventions as names
from rftd.streams.events.registry import Event
from rftd.streams.events.weights import WeightsAnswered, WeightsPublished, WeightsRequested, WeightsRetired
from rftd.streams.folds.evaluations import due_evals
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.sync_failure import SyncFailure
from rftd.streams.log.role import RoleLease
from rftd.streams.spec.schedule import eval_due, kept_versions
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.learning.engine import TrainerEngine, WeightsSnapshot
from rftd.workers.training.step_log import Publication
from rftd.workers.training.training_traces import TrainingTraces
from rftd.workers.weights.channel import (
    Exported,
    TensorChannel,
    TensorSnapshot,
    WeightService,
    as_ref,
    check_takes,
)
from rftd.workers.weights.checksum import trained_checksum
from rftd.workers.weights.registry import Channels
from rftd.workers.weights.service import SERVICE, NamedSnapshot, ServiceChannel

DURABLE = "checkpoint"
"""Name of the channel whose versions survive a restart of the machine."""
LOOKS_S: Final = (5.0, 60.0, 600.0)
"""Idle times in seconds after which the trainer reads its announced weights completely, once each, to find damage."""
_GONE: Final = {
    DURABLE: "its files are gone",
    "memory": "the memory that held them is gone",
    "nccl": "the process that held them is gone",
    SERVICE: "the service has forgotten them",
}


class CurrentWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of the weights now loaded in the engine."""

    version: int
    generation: int
    stage: int
    checksum: str


class Publisher:
    """Publishes the engine's weights through their stage's channel, and retires versions nobody needs."""

    def __init__(
        self,
        engine: TrainerEngine,
        lease: RoleLease,
        state: RunState,
        spec: ExperimentSpec,
        thread: Executor,
        *,
        log: Logger,
        clock: Clock,
        failures: Counter[SyncFailure],
        traces: TrainingTraces | None = None,
    ) -> None:
        """`failures` counts the failed attempts on a channel, by reason."""
        self._traces = traces or TrainingTraces(None, state.experiment)
        self.newest: Publication | None = None
        """The last publication; None before the first."""
        self._clock = clock
        self._failures = failures
        self._engine = engine
        self._under_way: asyncio.Task[None] | None = None
        self._lease = lease
        self._state = state
        self._spec = spec
        self._thread = thread
        self._log = log
        self._taken_up: CurrentWeights | None = None
        self._looks = 0
        self._damaged: set[str] = set()
        """Paths of announced weights found unreadable."""
        self._made_again: set[str] = set()
        """Paths of lost weights for which training was resumed from an earlier checkpoint, not announced again yet."""
        memory_dir = next((stage.synchronizer.memory_dir for stage in spec.stages if stage.synchronizer.memory_dir), "")
        # The epoch is in every name: a replaced publisher that wakes cannot touch its successor's files.
        service = engine if isinstance(engine, WeightService) else None
        self._channels = Channels(spec.job_dir, memory_dir, epoch=lease.writer.epoch, service=service)

    async def publish(self, current: CurrentWeights) -> None:
        """Publishes the engine's weights, unless equal weights of the version are already announced and present (rule
        8).

        Different weights of the same version, from an earlier generation, are retired. Equal but lost ones, for example
        in a machine's memory after a reboot, are published again.
        """
        self._taken_up = current
        older = self._announced(current.version)
        if not await self._has_equal(older, current):
            await self._write(await self._snapshot(), current, older)

    async def publish_aside(self, tasks: asyncio.TaskGroup, current: CurrentWeights) -> None:
        """Starts publishing the present weights in `tasks`, after waiting for an earlier publication to end."""
        await self.settle()
        older = self._announced(current.version)
        if await self._has_equal(older, current):
            return
        snapshot = await self._snapshot()
        # The snapshot is a copy, taken before the caller continues: the next step changes the weights in place.
        self._under_way = tasks.create_task(self._write(snapshot, current, older))

    async def answer(self, tasks: asyncio.TaskGroup, request: WeightsRequested, current: CurrentWeights | None) -> None:
        """Publishes the present weights if necessary, and answers an explorer's request, in `tasks`.

        `current` is None before the first step of a generation, whose weights are announced already.
        """
        await self.settle()
        if self._state.weights.answered(request):
            return
        older = self._announced(current.version) if current is not None else []
        if current is None or await self._has_equal(older, current):
            await self._append([_answered(request, self._state.spine.version)])
            return
        snapshot = await self._snapshot()
        self._under_way = tasks.create_task(self._write(snapshot, current, older, request))

    async def settle(self) -> None:
        """Waits until the publication started by `publish_aside` or `answer` is in the log."""
        if self._under_way is not None:
            await self._under_way
            self._under_way = None

    async def mend(self, current: CurrentWeights | None, *, idle_s: float = 0.0) -> bool:
        """Retires lost weights, and publishes the present ones in their place. Returns True if an evaluation needs a
        lost version.

        Rollouts can use a newer version, an evaluation cannot: after True, the caller resumes training from before the
        lost version. Later versions are left: their plans are executed again. `current` is None before the first step
        of a generation. `idle_s` are the seconds the trainer has waited; weights are read completely at the times
        `LOOKS_S`, because explorers unable to load damaged ones let it wait.
        """
        await self.settle()
        current = self._taken_up = current or self._taken_up
        if current is None:
            return False
        # Reading everything through takes minutes for large weights: once at each of these waiting times, not at each
        # check.
        looks = self._looks
        self._looks = sum(idle_s >= wait_s for wait_s in LOOKS_S)
        # Versions later than the present one belong to plans that this generation executes again, and then publishes.
        missing = await self._lost(thorough=self._looks > looks)
        lost = [event for event in missing if event.version <= current.version]
        evaluated = self._evaluated()
        again = False
        for event in lost:
            self._log.warning("weights.lost", version=event.version, path=event.path)
            if event.version == current.version:
                continue
            if event.version in evaluated and event.path not in self._made_again:
                self._made_again.add(event.path)
                again = True
            else:
                # First the event, then the removal: an explorer may read the files for as long as the log announces
                # them.
                await self._append([_retired(event, _GONE.get(event.method, _GONE[DURABLE]), lost=True)])
                await self._remove([event])
        if lost and not again:  # the present weights replace the lost ones, or are among them
            await self.publish(current)
        return again

    async def needed(self) -> int | None:
        """Returns the lowest lost version that an evaluation is waiting for; None without one."""
        evaluated = self._evaluated()
        lost = [event for event in await self._lost() if event.version in evaluated] if evaluated else []
        self._made_again.update(event.path for event in lost)
        return min((event.version for event in lost), default=None)

    def _evaluated(self) -> set[int]:
        """Returns the versions awaited by evaluations."""
        spine = self._state.spine
        return {version for version, _ in due_evals(self._state, spine.stage_spec())} if spine.stage >= 0 else set()

    async def _lost(self, *, thorough: bool = False) -> list[WeightsPublished]:
        """Returns the lost ones of the announced weights that count; `thorough`: including ones with an unreadable
        tensor.
        """
        weights = self._state.weights
        spine = self._state.spine
        counting = [weights.published[key] for key in weights.standing if weights.counts(*key, spine)]
        holds = self._opens if thorough else self._stands
        # A disk without an answer blocks the thread, not the heartbeats.
        presence = await asyncio.to_thread(lambda: [holds(event) for event in counting])
        return [event for event, current in zip(counting, presence, strict=True) if not current]

    def _contains(self, event: WeightsPublished) -> bool:
        """True if the event's channel has these weights; False for foreign ones."""
        try:
            # First of all: for foreign weights not even the channel is opened.
            ref = as_ref(event, self._spec)
        except WorkError:  # announced by a foreign process: no such weights here
            return False
        return self._channels.of(event.method).holds(ref)

    def _stands(self, event: WeightsPublished) -> bool:
        """True if the weights are present, and were never found unreadable, which their name alone does not show."""
        # Only `_opens` asks a service: this check runs twice a second while no plan comes.
        return event.path not in self._damaged and (event.method == SERVICE or self._contains(event))

    def _opens(self, event: WeightsPublished) -> bool:
        """True if the weights are present and readable to the last tensor; notes damaged ones."""
        if not self._stands(event):
            return False
        if event.method == SERVICE:
            if not self._contains(event):
                self._damaged.add(event.path)
            return event.path not in self._damaged  # a service has nothing to read through
        try:
            ref = as_ref(event, self._spec)
            with self._channels.of(event.method).open(ref):
                return True
        except WorkError as error:
            self._log.warning("weights.damaged", version=event.version, error=error.what)
            self._damaged.add(event.path)
            return False

    async def _has_equal(self, older: Sequence[WeightsPublished], current: CurrentWeights) -> bool:
        """True if equal weights are present, or this trainer has declared the version over."""
        for event in older:
            if event.step_checksum == current.checksum and await asyncio.to_thread(self._stands, event):
                return True
        return self._state.weights.over(current.version, current.generation)

    def announced(self, version: int) -> bool:
        """True if any generation has announced this version to explorers."""
        return bool(self._announced(version))

    def _announced(self, version: int) -> list[WeightsPublished]:
        """Returns the announcements of a version that count, of any generation."""
        weights = self._state.weights
        spine = self._state.spine
        return [
            event
            for event in weights.published.values()
            if event.version == version and weights.counts(version, event.generation, spine)
        ]

    async def _snapshot(self) -> WeightsSnapshot:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.snapshot)

    async def _write(
        self,
        snapshot: WeightsSnapshot,
        current: CurrentWeights,
        older: Sequence[WeightsPublished],
        request: WeightsRequested | None = None,
    ) -> None:
        """Publishes a snapshot within a span of the trace."""
        with self._traces.publication(current.version, current.generation) as span:
            publication = await self._written(snapshot, current, older, request)
            if span is not None:
                span.attributes |= {names.WEIGHT_METHOD: publication.method, names.SIZE_BYTES: publication.size_bytes}

    async def _written(
        self,
        snapshot: WeightsSnapshot,
        current: CurrentWeights,
        older: Sequence[WeightsPublished],
        request: WeightsRequested | None,
    ) -> Publication:
        """Exports a snapshot, appends its announcement, and retires versions it replaces or that are outdated."""
        began_s = self._clock.monotonic_s()
        method, exported = await asyncio.to_thread(self._export, snapshot, current)
        faults.point("weights.after_files")
        trained = trained_checksum(current.checksum, exported.checksum, exact=snapshot.exact, version=current.version)
        event = WeightsPublished(
            version=current.version,
            generation=current.generation,
            stage=current.stage,
            method=method,
            path=exported.path,
            manifest=exported.manifest,
            checksum=exported.checksum,
            size_bytes=exported.size_bytes,
            host=exported.host,
            trained=trained,
            duration_s=self._clock.monotonic_s() - began_s,
        )
        # The files may lie under another name than before, if the ones under the old name were damaged.
        same = next((event_before for event_before in older if event_before.generation == current.generation), None)
        differing = [event_before for event_before in older if event_before is not same]
        old = [outdated for outdated in self._old() if outdated not in older]
        # One append for everything: each append wakes every follower of the weights.
        repeated = same is not None and msgspec.structs.replace(event, duration_s=same.duration_s) == same
        events: list[Event] = [] if repeated else [event]
        events += [_answered(request, current.version)] if request is not None else []
        events += [_retired(event_before, "another generation differs") for event_before in differing]
        events += [_retired(outdated, "newer versions exist") for outdated in old]
        await self._append(events)
        newest = self.newest = Publication(
            version=event.version,
            method=method,
            size_bytes=event.size_bytes,
            duration_s=self._clock.monotonic_s() - began_s,
        )
        self._damaged.discard(event.path)
        self._made_again.discard(event.path)  # lost once more, they are made once more
        faults.point("weights.after_append")
        # Removed after the append: until then explorers know only the old names.
        damaged = [same] if same is not None and same.path != event.path else []
        await self._remove([*damaged, *differing, *old])
        # After the announcement: the next publication finds a buffer, and nobody waits for this one.
        await asyncio.to_thread(self._channels.of(method).prepare)
        return newest

    def _export(self, snapshot: WeightsSnapshot, current: CurrentWeights) -> tuple[str, Exported]:
        """Returns the channel's name and the exported weights; without room in the stage's channel, the durable one
        serves.
        """
        method = self._method(current)
        # Before the fallback: weights unsuitable for a channel are no lack of room.
        channel = self._channels.of(method)
        check_takes(channel, snapshot.kind, method)
        if isinstance(channel, ServiceChannel) and isinstance(snapshot, NamedSnapshot):
            return method, channel.publish_name(snapshot)
        version = current.version
        generation = current.generation
        if method != DURABLE:
            try:
                if isinstance(channel, TensorChannel) and isinstance(snapshot, TensorSnapshot):
                    # From device memory: not a byte of the tensors comes to the host.
                    tensors = snapshot.tensors()
                    return method, channel.publish_tensors(tensors, version=version, generation=generation)
                return method, channel.publish(snapshot.weights(), version=version, generation=generation)
            # Other weights under the same version and generation: no lack of room, and no channel may hide it.
            except ConflictError:
                raise
            except (RftdError, OSError) as error:
                reason = error.what if isinstance(error, RftdError) else str(error)
                self._failures[SyncFailure.FELL_BACK] += 1
                self._log.warning("weights.fell_back", version=version, method=method, to=DURABLE, reason=reason)
        durable = self._channels.of(DURABLE)
        return DURABLE, durable.publish(snapshot.weights(), version=version, generation=generation)

    def _method(self, current: CurrentWeights) -> str:
        """Returns the channel: durable for versions evaluated, or at the start of a stage, beyond the machine's memory.

        Versions damaged in memory are durable, too: memory is not trusted with them again.
        """
        spec = self._state.spine.spec or self._spec  # the end of a queue of tasks shortens the stage
        stage = spec.stages[current.stage]
        if stage.synchronizer.sync_method == SERVICE:
            return SERVICE  # a service outlives the machine's memory, and files cannot replace it
        if any(
            earlier.path in self._damaged for earlier in self._announced(current.version) if earlier.method != DURABLE
        ):
            return DURABLE
        step = current.version - self._state.spine.first_versions.get(current.stage, 0)
        return DURABLE if step == stage.total_steps or eval_due(stage, step) else stage.synchronizer.sync_method

    def _old(self) -> list[WeightsPublished]:
        """Returns versions below the newest few without need by an evaluation or a pinned rollout."""
        state = self._state
        if state.spine.stage < 0:
            return []
        stage = state.spine.stage_spec()
        # Explorers may still load a version pinned to a rollout when it was the newest.
        lowest = state.spine.version - kept_versions(stage)
        old = [
            event
            for key, event in state.weights.published.items()
            if event.version < lowest and key not in state.weights.retired
        ]
        evaluated = self._evaluated() if old else set()
        return [event for event in old if event.version not in evaluated]

    async def _append(self, events: Sequence[Event]) -> None:
        await self._lease.append(
            [self._lease.writer.draft(event, experiment=self._state.experiment) for event in events]
        )

    async def _remove(self, retired: Sequence[WeightsPublished]) -> None:
        """Removes the bytes of retired weights; the log records their retirement by then."""
        for event in retired:
            faults.point("weights.before_removal")
            await asyncio.to_thread(self._retire, event)

    def _retire(self, event: WeightsPublished) -> None:
        """Removes the bytes of retired weights; logs a warning for foreign ones."""
        try:
            ref = as_ref(event, self._spec)
        except WorkError as error:
            self._log.warning("weights.not_removed", version=event.version, path=event.path, error=error.what)
        else:
            self._channels.of(event.method).retire(ref)


def _retired(event: WeightsPublished, reason: str, *, lost: bool = False) -> WeightsRetired:
    return WeightsRetired(version=event.version, generation=event.generation, reason=reason, lost=lost)


def _answered(request: WeightsRequested, version: int) -> WeightsAnswered:
    return WeightsAnswered(stage=request.stage, window=request.window, number=request.number, version=version)
