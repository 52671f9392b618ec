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
FULL_READS_S: Final = (5.0, 60.0, 600.0)
"""Idle times in seconds after which the trainer reads its announced weights completely, once each, to find damage."""
_LOSS_REASON_BY_CHANNEL: Final = {
    DURABLE: "its files are gone",
    "memory": "the memory that held them is gone",
    "nccl": "the process that held them is gone",
    SERVICE: "the service has forgotten them",
}
"""Reason for the retirement of lost weights, by channel."""


class CurrentWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of the weights now loaded in the engine."""

    version: int
    """Weight version: steps completed in the experiment."""
    generation: int
    """Times the training history was resumed."""
    stage: int
    """Index of the stage under training."""
    checksum: str
    """Checksum of the trained values, recorded by the step."""


class Publisher:
    """Publishes the engine's weights through their stage's channel, and retires versions without a user."""

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
        """Publishes weights of `engine` under the trainer's `lease` for the experiment of `state` and `spec`.

        Snapshots run on `thread`, the engine's own. `failures` counts failed attempts on a channel, by reason; `traces`
        records a span per publication.
        """
        self._traces = traces or TrainingTraces(None, state.experiment)
        self.newest: Publication | None = None
        """The last publication; None before the first."""
        self._clock = clock
        self._failures = failures
        self._engine = engine
        self._publication_task: asyncio.Task[None] | None = None
        """Task of the publication under way; None without one."""
        self._lease = lease
        self._state = state
        self._spec = spec
        self._thread = thread
        self._log = log
        self._newest_loaded: CurrentWeights | None = None
        """Identity last published or checked, for `mend` before the first step of a generation; None at first."""
        self._full_reads = 0
        """Number of times in `FULL_READS_S` passed at the last check of the present wait."""
        self._damaged_paths: set[str] = set()
        """Paths of announced weights found unreadable."""
        self._paths_being_remade: set[str] = set()
        """Paths of lost weights for which training was resumed from an earlier checkpoint, not announced again yet."""
        memory_dir = next((stage.synchronizer.memory_dir for stage in spec.stages if stage.synchronizer.memory_dir), "")
        # The epoch is in every name: a replaced publisher that wakes cannot touch its successor's files.
        service = engine if isinstance(engine, WeightService) else None
        self._channels = Channels(spec.job_dir, memory_dir, epoch=lease.writer.epoch, service=service)

    async def publish(self, current: CurrentWeights) -> None:
        """Publishes the engine's weights, unless equal weights of the version are already announced and present.

        Different weights of the same version, from an earlier generation, are retired. Equal but lost ones, for example
        in a machine's memory after a reboot, are published again.
        """
        self._newest_loaded = current
        older = self.announcements_of(current.version)
        if not await self._has_equal(older, current):
            await self._publish_snapshot(await self._snapshot(), current, older)

    async def publish_aside(
        self, tasks: asyncio.TaskGroup, current: CurrentWeights | None, request: WeightsRequested | None = None
    ) -> None:
        """Waits for an earlier publication to end, then starts publishing the present weights as a task of `tasks`;
        answers an explorer's `request` with the publication.

        Equal weights announced and present are not published again. `current` is None before the first step of a
        generation, whose weights are announced already.
        """
        await self.settle()
        if request is not None and self._state.weights.answered(request):
            return
        older = self.announcements_of(current.version) if current is not None else []
        if current is None or await self._has_equal(older, current):
            if request is not None:
                await self._append([_answer_event(request, self._state.spine.version)])
            return
        snapshot = await self._snapshot()
        # The snapshot is a copy, taken before the caller continues: the next step changes the weights in place.
        self._publication_task = tasks.create_task(self._publish_snapshot(snapshot, current, older, request))

    async def settle(self) -> None:
        """Waits until the publication started by `publish_aside` is in the log."""
        if self._publication_task is not None:
            await self._publication_task
            self._publication_task = None

    async def mend(self, current: CurrentWeights | None, *, idle_s: float = 0.0) -> bool:
        """Publishes the present weights again if announced ones are lost, and retires older lost ones.

        Returns True if an evaluation waits for a lost older version, which only further training can produce: the
        caller then resumes from before that version, and nothing is published now. A version for which True was
        returned once is retired if lost still. Versions later than the present one are left: their plans are executed
        again. `current` is None before the first step of a generation. `idle_s` are the seconds the trainer has waited;
        weights are read completely at the times `FULL_READS_S`, because explorers unable to load damaged ones let it
        wait.
        """
        await self.settle()
        current = self._newest_loaded = current or self._newest_loaded
        if current is None:
            return False
        # Reading everything through takes minutes for large weights: once at each of these waiting times, not at each
        # check.
        looks = self._full_reads
        self._full_reads = sum(idle_s >= wait_s for wait_s in FULL_READS_S)
        # Versions later than the present one belong to plans that this generation executes again, and then publishes.
        missing = await self._lost(thorough=self._full_reads > looks)
        lost = [event for event in missing if event.version <= current.version]
        evaluated = self._versions_awaited()
        again = False
        for event in lost:
            self._log.warning("weights.lost", version=event.version, path=event.path)
            if event.version == current.version:
                continue
            if event.version in evaluated and event.path not in self._paths_being_remade:
                self._paths_being_remade.add(event.path)
                again = True
            else:
                # First the event, then the removal: an explorer may read the files for as long as the log announces
                # them.
                await self._append(
                    [
                        _retirement_event(
                            event,
                            _LOSS_REASON_BY_CHANNEL.get(event.method, _LOSS_REASON_BY_CHANNEL[DURABLE]),
                            lost=True,
                        )
                    ]
                )
                await self._remove([event])
        if lost and not again:  # the present weights replace the lost ones, or are among them
            await self.publish(current)
        return again

    async def begin_remaking(self) -> int | None:
        """Marks lost versions awaited by evaluations as being remade, so that `mend` asks for no second resumption.

        Returns the lowest of these versions; None without any.
        """
        evaluated = self._versions_awaited()
        lost = [event for event in await self._lost() if event.version in evaluated] if evaluated else []
        self._paths_being_remade.update(event.path for event in lost)
        return min((event.version for event in lost), default=None)

    def _versions_awaited(self) -> set[int]:
        """Returns the versions awaited by evaluations of the current stage."""
        spine = self._state.spine
        return {version for version, _ in due_evals(self._state, spine.stage_spec())} if spine.stage >= 0 else set()

    async def _lost(self, *, thorough: bool = False) -> list[WeightsPublished]:
        """Returns the valid announcements whose weights are lost; with `thorough`, unreadable weights count as lost."""
        weights = self._state.weights
        spine = self._state.spine
        counting = [weights.published[key] for key in weights.standing if weights.counts(*key, spine)]
        # A disk without an answer blocks the thread, not the heartbeats.
        presence = await asyncio.to_thread(lambda: [self._is_present(event, thorough=thorough) for event in counting])
        return [event for event, current in zip(counting, presence, strict=True) if not current]

    def _is_present(self, event: WeightsPublished, *, thorough: bool = False) -> bool:
        """True if the channel has the weights under their name, and no reading found them damaged; False for weights
        announced by another process.

        With `thorough`, every tensor is read, damage is remembered, and a service is asked; without, weights at a
        service are assumed to be present.
        """
        if event.path in self._damaged_paths:
            return False
        of_service = event.method == SERVICE
        # Only a thorough check asks a service: the other one runs twice a second while no plan comes.
        if of_service and not thorough:
            return True
        try:
            # First of all: for foreign weights not even the channel is opened.
            ref = as_ref(event, self._spec)
        except WorkError:  # announced by a foreign process: no such weights here
            ref = None
        if ref is None or not self._channels.of(event.method).holds(ref):
            if of_service:
                self._damaged_paths.add(event.path)
            return False
        if of_service or not thorough:  # a service has nothing to read through
            return True
        try:
            with self._channels.of(event.method).open(ref):
                return True
        except WorkError as error:
            self._log.warning("weights.damaged", version=event.version, error=error.what)
            self._damaged_paths.add(event.path)
            return False

    async def _has_equal(self, older: Sequence[WeightsPublished], current: CurrentWeights) -> bool:
        """True if weights equal to `current` are announced in `older` and present, or this trainer has retired the
        version for good.
        """
        for event in older:
            if event.step_checksum == current.checksum and await asyncio.to_thread(self._is_present, event):
                return True
        return self._state.weights.over(current.version, current.generation)

    def announcements_of(self, version: int) -> list[WeightsPublished]:
        """Returns the valid announcements of a version, of any generation: not retired, and produced by a step on the
        spine.
        """
        weights = self._state.weights
        spine = self._state.spine
        return [
            event
            for event in weights.published.values()
            if event.version == version and weights.counts(version, event.generation, spine)
        ]

    async def _snapshot(self) -> WeightsSnapshot:
        """Takes a snapshot of the engine's weights, on the engine's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.snapshot)

    async def _publish_snapshot(
        self,
        snapshot: WeightsSnapshot,
        current: CurrentWeights,
        older: Sequence[WeightsPublished],
        request: WeightsRequested | None = None,
    ) -> None:
        """Publishes a snapshot within a span of the trace."""
        with self._traces.publication(current.version, current.generation) as span:
            publication = await self._export_and_announce(snapshot, current, older, request)
            if span is not None:
                span.attributes |= {names.WEIGHT_METHOD: publication.method, names.SIZE_BYTES: publication.size_bytes}

    async def _export_and_announce(
        self,
        snapshot: WeightsSnapshot,
        current: CurrentWeights,
        older: Sequence[WeightsPublished],
        request: WeightsRequested | None,
    ) -> Publication:
        """Exports a snapshot, appends its announcement, and retires replaced and outdated versions.

        `older` are the announcements of the same version so far; `request` is the explorers' request answered by the
        publication.
        """
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
        old = [outdated for outdated in self._versions_to_retire() if outdated not in older]
        # One append for everything: each append wakes every follower of the weights.
        repeated = same is not None and msgspec.structs.replace(event, duration_s=same.duration_s) == same
        events: list[Event] = [] if repeated else [event]
        events += [_answer_event(request, current.version)] if request is not None else []
        events += [_retirement_event(event_before, "another generation differs") for event_before in differing]
        events += [_retirement_event(outdated, "newer versions exist") for outdated in old]
        await self._append(events)
        newest = self.newest = Publication(
            version=event.version,
            method=method,
            size_bytes=event.size_bytes,
            duration_s=self._clock.monotonic_s() - began_s,
        )
        self._damaged_paths.discard(event.path)
        self._paths_being_remade.discard(event.path)  # lost once more, they are made once more
        faults.point("weights.after_append")
        # Removed after the append: until then explorers know only the old names.
        damaged = [same] if same is not None and same.path != event.path else []
        await self._remove([*damaged, *differing, *old])
        # After the announcement: the next publication finds a buffer, and nobody waits for this one.
        await asyncio.to_thread(self._channels.of(method).prepare)
        return newest

    def _export(self, snapshot: WeightsSnapshot, current: CurrentWeights) -> tuple[str, Exported]:
        """Exports a snapshot; returns the name of the channel used, and the exported weights.

        If the stage's channel fails for any reason except a conflict with other weights of that name, the durable
        channel is used.
        """
        method = self._channel_for(current)
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

    def _channel_for(self, current: CurrentWeights) -> str:
        """Returns the name of the channel for a publication: the stage's own, or the durable one.

        Durable are the stage's last step, versions to be evaluated, and versions found damaged in another channel. A
        service keeps its versions itself, so its channel is never replaced.
        """
        spec = self._state.spine.spec or self._spec  # the end of a queue of tasks shortens the stage
        stage = spec.stages[current.stage]
        if stage.synchronizer.sync_method == SERVICE:
            return SERVICE  # a service outlives the machine's memory, and files cannot replace it
        if any(
            earlier.path in self._damaged_paths
            for earlier in self.announcements_of(current.version)
            if earlier.method != DURABLE
        ):
            return DURABLE
        step = current.version - self._state.spine.first_versions.get(current.stage, 0)
        return DURABLE if step == stage.total_steps or eval_due(stage, step) else stage.synchronizer.sync_method

    def _versions_to_retire(self) -> list[WeightsPublished]:
        """Returns the announcements not retired yet, below the newest `kept_versions` and awaited by no evaluation."""
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
        evaluated = self._versions_awaited() if old else set()
        return [event for event in old if event.version not in evaluated]

    async def _append(self, events: Sequence[Event]) -> None:
        """Appends events under the trainer's lease."""
        await self._lease.append(
            [self._lease.writer.draft(event, experiment=self._state.experiment) for event in events]
        )

    async def _remove(self, retired: Sequence[WeightsPublished]) -> None:
        """Removes the bytes of weights whose retirement is in the log."""
        for event in retired:
            faults.point("weights.before_removal")
            await asyncio.to_thread(self._remove_bytes, event)

    def _remove_bytes(self, event: WeightsPublished) -> None:
        """Removes the bytes of one version; logs a warning for weights announced by another process."""
        try:
            ref = as_ref(event, self._spec)
        except WorkError as error:
            self._log.warning("weights.not_removed", version=event.version, path=event.path, error=error.what)
        else:
            self._channels.of(event.method).retire(ref)


def _retirement_event(event: WeightsPublished, reason: str, *, lost: bool = False) -> WeightsRetired:
    """Returns the event retiring announced weights, with the reason."""
    return WeightsRetired(version=event.version, generation=event.generation, reason=reason, lost=lost)


def _answer_event(request: WeightsRequested, version: int) -> WeightsAnswered:
    """Returns the event answering an explorer's request for weights."""
    return WeightsAnswered(stage=request.stage, window=request.window, number=request.number, version=version)
