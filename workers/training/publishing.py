"""Weights for explorers: bytes first, then their event; old versions are retired once nothing needs them."""

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
"""The channel whose versions outlive the machine's memory."""
LOOKS_S: Final = (5.0, 60.0, 600.0)
"""A trainer that has waited for so long reads through what it has announced, once each time."""
_GONE: Final = {
    DURABLE: "its files are gone",
    "memory": "the memory that held them is gone",
    "nccl": "the process that held them is gone",
    SERVICE: "the service has forgotten them",
}


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that the engine holds now."""

    version: int
    generation: int
    stage: int
    checksum: str


class Publisher:
    """Announces the engine's weights through the channel of their stage."""

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
        """`failures` are counted on, by reason."""
        self._traces = traces or TrainingTraces(None, state.experiment)
        self.newest: Publication | None = None
        """What was announced last."""
        self._clock = clock
        self._failures = failures
        self._engine = engine
        self._under_way: asyncio.Task[None] | None = None
        self._lease = lease
        self._state = state
        self._spec = spec
        self._thread = thread
        self._log = log
        self._taken_up: Present | None = None
        self._looks = 0
        self._damaged: set[str] = set()
        """Paths of what is there and cannot be read."""
        self._made_again: set[str] = set()
        """Paths for whose sake the history was taken up from before them, and that were not announced since."""
        memory_dir = next((stage.synchronizer.memory_dir for stage in spec.stages if stage.synchronizer.memory_dir), "")
        # The epoch is in every name: a publisher that was replaced and wakes cannot touch its successor's files.
        service = engine if isinstance(engine, WeightService) else None
        self._channels = Channels(spec.job_dir, memory_dir, epoch=lease.writer.epoch, service=service)

    async def publish(self, present: Present) -> None:
        """Announces the engine's weights, unless equal weights of that version are announced already (rule 8).

        Weights of the same version that differ, from a generation before, are retired. Equal ones that are gone, as a
        machine's memory is after it was started anew, are published again.
        """
        self._taken_up = present
        older = self._announced(present.version)
        if not await self._held(older, present):
            await self._write(await self._snapshot(), present, older)

    async def publish_aside(self, tasks: asyncio.TaskGroup, present: Present) -> None:
        """Announces the weights as they are now while the caller goes on; waits for the publication before it."""
        await self.settle()
        older = self._announced(present.version)
        if await self._held(older, present):
            return
        snapshot = await self._snapshot()
        # The snapshot is a copy, taken before the caller goes on: the next step changes the weights in place.
        self._under_way = tasks.create_task(self._write(snapshot, present, older))

    async def answer(self, tasks: asyncio.TaskGroup, request: WeightsRequested, present: Present | None) -> None:
        """Announces the present weights, unless they are, and answers; aside, while the caller goes on.

        None: those that were taken up, which are announced.
        """
        await self.settle()
        if self._state.weights.answered(request):
            return
        older = self._announced(present.version) if present is not None else []
        if present is None or await self._held(older, present):
            await self._append([_answered(request, self._state.spine.version)])
            return
        snapshot = await self._snapshot()
        self._under_way = tasks.create_task(self._write(snapshot, present, older, request))

    async def settle(self) -> None:
        """Returns once what was published aside is in the log."""
        if self._under_way is not None:
            await self._under_way
            self._under_way = None

    async def mend(self, present: Present | None, *, idle_s: float = 0.0) -> bool:
        """Retires older versions that are gone, and announces the present weights in their place, or again.

        Rollouts that need an older one run on the next. An evaluation cannot: True if one waits for weights that are
        gone, and that are made again if the history is taken up from before them. Later versions are left: their plans
        are executed again. None: the weights are still those that were taken up. `idle_s`: for how long the trainer
        has waited; explorers that cannot load what is damaged let it wait, so that what is there is read through then.
        """
        await self.settle()
        present = self._taken_up = present or self._taken_up
        if present is None:
            return False
        # Reading everything through takes minutes for large weights: once at each of these waiting times, not at each
        # look.
        looks = self._looks
        self._looks = sum(idle_s >= each_s for each_s in LOOKS_S)
        # Later versions than the present belong to plans that this generation executes again, and then publishes.
        found = await self._lost(thorough=self._looks > looks)
        lost = [event for event in found if event.version <= present.version]
        evaluated = self._evaluated()
        again = False
        for event in lost:
            self._log.warning("weights.lost", version=event.version, path=event.path)
            if event.version == present.version:
                continue
            if event.version in evaluated and event.path not in self._made_again:
                self._made_again.add(event.path)
                again = True
            else:
                # First the event, then the removal: an explorer may read the files for as long as the log announces
                # them.
                await self._append([_retired(event, _GONE.get(event.method, _GONE[DURABLE]), lost=True)])
                await self._remove([event])
        if lost and not again:  # what stands in for them, or is one of them
            await self.publish(present)
        return again

    async def needed(self) -> int | None:
        """The lowest version that an evaluation waits for and that is gone; None if there is none."""
        evaluated = self._evaluated()
        lost = [event for event in await self._lost() if event.version in evaluated] if evaluated else []
        self._made_again.update(event.path for event in lost)
        return min((event.version for event in lost), default=None)

    def _evaluated(self) -> set[int]:
        """Versions that evaluations wait for."""
        spine = self._state.spine
        return {version for version, _ in due_evals(self._state, spine.stage_spec())} if spine.stage >= 0 else set()

    async def _lost(self, *, thorough: bool = False) -> list[WeightsPublished]:
        """The announced weights that count and are gone; `thorough`: or that cannot be read to the last tensor."""
        weights = self._state.weights
        spine = self._state.spine
        counting = [weights.published[key] for key in weights.standing if weights.counts(*key, spine)]
        holds = self._opens if thorough else self._stands
        # A disk that does not answer holds its thread up, not the heartbeats.
        held = await asyncio.to_thread(lambda: [holds(event) for event in counting])
        return [event for event, there in zip(counting, held, strict=True) if not there]

    def _holds(self, event: WeightsPublished) -> bool:
        try:
            # First of all: of what is not ours not even the channel is opened.
            ref = as_ref(event, self._spec)
        except WorkError:  # announced by somebody who is no trainer of ours: nothing is there
            return False
        return self._channels.of(event.method).holds(ref)

    def _stands(self, event: WeightsPublished) -> bool:
        """True if it is there, and was never found unreadable, which a look at its name does not show."""
        # A service is asked by `_opens` alone: this is looked at twice a second while no plan comes.
        return event.path not in self._damaged and (event.method == SERVICE or self._holds(event))

    def _opens(self, event: WeightsPublished) -> bool:
        if not self._stands(event):
            return False
        if event.method == SERVICE:
            if not self._holds(event):
                self._damaged.add(event.path)
            return event.path not in self._damaged  # there is nothing to read through
        try:
            ref = as_ref(event, self._spec)
            with self._channels.of(event.method).open(ref):
                return True
        except WorkError as error:
            self._log.warning("weights.damaged", version=event.version, error=error.what)
            self._damaged.add(event.path)
            return False

    async def _held(self, older: Sequence[WeightsPublished], present: Present) -> bool:
        """True if equal weights are there, or this trainer has said that theirs are over."""
        for event in older:
            if event.step_checksum == present.checksum and await asyncio.to_thread(self._stands, event):
                return True
        return self._state.weights.over(present.version, present.generation)

    def announced(self, version: int) -> bool:
        """True if explorers were told of this version, whatever generation made it."""
        return bool(self._announced(version))

    def _announced(self, version: int) -> list[WeightsPublished]:
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
        present: Present,
        older: Sequence[WeightsPublished],
        request: WeightsRequested | None = None,
    ) -> None:
        with self._traces.publication(present.version, present.generation) as span:
            written = await self._written(snapshot, present, older, request)
            if span is not None:
                span.attributes |= {names.WEIGHT_METHOD: written.method, names.SIZE_BYTES: written.size_bytes}

    async def _written(
        self,
        snapshot: WeightsSnapshot,
        present: Present,
        older: Sequence[WeightsPublished],
        request: WeightsRequested | None,
    ) -> Publication:
        began_s = self._clock.monotonic_s()
        method, exported = await asyncio.to_thread(self._export, snapshot, present)
        faults.point("weights.after_files")
        trained = trained_checksum(present.checksum, exported.checksum, exact=snapshot.exact, version=present.version)
        event = WeightsPublished(
            version=present.version,
            generation=present.generation,
            stage=present.stage,
            method=method,
            path=exported.path,
            manifest=exported.manifest,
            checksum=exported.checksum,
            size_bytes=exported.size_bytes,
            host=exported.host,
            trained=trained,
            duration_s=self._clock.monotonic_s() - began_s,
        )
        # Its files may lie under another name than before, where those under the old one were damaged.
        same = next((each for each in older if each.generation == present.generation), None)
        others = [each for each in older if each is not same]
        old = [each for each in self._old() if each not in older]
        # One append for all of it: each wakes everybody who follows the weights.
        repeated = same is not None and msgspec.structs.replace(event, duration_s=same.duration_s) == same
        events: list[Event] = [] if repeated else [event]
        events += [_answered(request, present.version)] if request is not None else []
        events += [_retired(each, "another generation differs") for each in others]
        events += [_retired(each, "newer versions exist") for each in old]
        await self._append(events)
        newest = self.newest = Publication(
            version=event.version,
            method=method,
            size_bytes=event.size_bytes,
            duration_s=self._clock.monotonic_s() - began_s,
        )
        self._damaged.discard(event.path)
        self._made_again.discard(event.path)  # gone once more, it is made once more
        faults.point("weights.after_append")
        # Removed after the append: until then the old names are those that explorers know.
        damaged = [same] if same is not None and same.path != event.path else []
        await self._remove([*damaged, *others, *old])
        # Now that everybody was told: the next publication finds a buffer, and nobody waits for this one.
        await asyncio.to_thread(self._channels.of(method).prepare)
        return newest

    def _export(self, snapshot: WeightsSnapshot, present: Present) -> tuple[str, Exported]:
        """The channel's name and what it holds; where the stage's channel has no room, it is the durable one."""
        method = self._method(present)
        # Before the fall back: what a channel cannot carry at all is no lack of room.
        channel = self._channels.of(method)
        check_takes(channel, snapshot.kind, method)
        if isinstance(channel, ServiceChannel) and isinstance(snapshot, NamedSnapshot):
            return method, channel.publish_name(snapshot)
        version = present.version
        generation = present.generation
        if method != DURABLE:
            try:
                if isinstance(channel, TensorChannel) and isinstance(snapshot, TensorSnapshot):
                    # From where they lie: not a byte of them comes to the host.
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

    def _method(self, present: Present) -> str:
        """Versions that are evaluated, or with which another stage begins, must outlive the machine's memory.

        So must those that memory has damaged: it is not trusted with them again.
        """
        spec = self._state.spine.spec or self._spec  # the end of a queue of tasks makes its stage shorter
        stage = spec.stages[present.stage]
        if stage.synchronizer.sync_method == SERVICE:
            return SERVICE  # it outlives every memory of ours, and no files can stand in for it
        if any(each.path in self._damaged for each in self._announced(present.version) if each.method != DURABLE):
            return DURABLE
        step = present.version - self._state.spine.first_versions.get(present.stage, 0)
        return DURABLE if step == stage.total_steps or eval_due(stage, step) else stage.synchronizer.sync_method

    def _old(self) -> list[WeightsPublished]:
        """Versions below the newest few that no evaluation and no pinned rollout can still need."""
        state = self._state
        if state.spine.stage < 0:
            return []
        stage = state.spine.stage_spec()
        # Explorers may still load a version that a rollout was pinned to when it was the newest.
        lowest = state.spine.version - kept_versions(stage)
        old = [
            event
            for key, event in state.weights.published.items()
            if event.version < lowest and key not in state.weights.retired
        ]
        wanted = self._evaluated() if old else set()
        return [event for event in old if event.version not in wanted]

    async def _append(self, events: Sequence[Event]) -> None:
        await self._lease.append([self._lease.writer.draft(each, experiment=self._state.experiment) for each in events])

    async def _remove(self, retired: Sequence[WeightsPublished]) -> None:
        """Removes the bytes of retired weights; the log says by then that they are retired."""
        for event in retired:
            faults.point("weights.before_removal")
            await asyncio.to_thread(self._retire, event)

    def _retire(self, event: WeightsPublished) -> None:
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
