"""The history shared by a fork: an experiment up to a weight version, read from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from uuid import UUID

import msgspec

from rftd.ops.errors import ConflictError, LogLossError, UsageError
from rftd.streams.events.batch import BatchAbandoned, BatchPlanned
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.events.step import StepCompleted
from rftd.streams.events.task import GroupClosed
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Spine
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as
from rftd.streams.log.effective import effective_records, of_experiment
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.follower import Fold
from rftd.streams.log.log import EventLog
from rftd.streams.log.start import start_of_experiment
from rftd.streams.log.topics import Partition, partition_of


class SharedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history shared by a fork: an experiment up to a weight version, with the fork's first event."""

    spine: Spine
    """Spine of the experiment that trained the step, folded to the log's end."""
    forked: ExperimentForked
    """First event of the fork, still without evaluations, which depend on the fork's tasksets."""


async def shared_history(log: EventLog, experiment: UUID, at_step: int) -> SharedHistory:
    """Reads the history shared by a fork of `experiment` at weight version `at_step`.

    For a step inherited by `experiment` itself, returns the history of the experiment that executed the step. Raises
    NotFoundError, ConflictError if the step was not executed, UsageError for an impossible step.
    """
    if at_step < 0:
        raise UsageError(f"there is no step {at_step}", field="at_step", fix="give 0 for the base, or a trained step")
    while True:
        # The present ends, for each ancestor anew: a run under way would otherwise be read for ever.
        ends = {partition: mark.next_offset for partition, mark in (await log.heads()).items()}
        history = _History(experiment, at_step)
        homes = [partition_of(stream, experiment) for stream in (topics.EXPERIMENTS, topics.WEIGHTS)]
        await fold_until(log, history, experiment, {home: ends.get(home, 0) for home in homes})
        forked = history.state.spine.forked
        if forked is None or at_step > forked.at_step:
            return await _shared(log, history)
        experiment = forked.parent


async def fold_until(log: EventLog, fold: Fold, experiment: UUID, ends: Mapping[Partition, int]) -> None:
    """Feeds the effective events of an experiment below `ends` to a fold. Raises NotFoundError."""
    starts = await start_of_experiment(log, experiment)
    fences = FenceView()
    is_wanted = of_experiment(experiment)
    for partition, end in ends.items():
        start = starts.get(partition, 0)
        async for decoded in effective_records(log, partition, fences, start=start, end=end, is_wanted=is_wanted):
            fold.apply(decoded)


async def spine_of(log: EventLog, experiment: UUID) -> Spine:
    """Folds the spine of an experiment up to the log's present end. Reads all of it; raises NotFoundError."""
    home = partition_of(topics.EXPERIMENTS, experiment)
    spine = Spine()
    heads = await log.heads()
    await fold_until(log, spine, experiment, {home: heads[home].next_offset if home in heads else 0})
    return spine


async def plan_offsets(log: EventLog, experiment: UUID, *, first: int) -> dict[int, int]:
    """Returns the offsets on the spine of the plans of steps from `first` on, by step. Reads all of the spine."""
    home = partition_of(topics.EXPERIMENTS, experiment)
    plans = _Plans(first)
    heads = await log.heads()
    await fold_until(log, plans, experiment, {home: heads[home].next_offset if home in heads else 0})
    return plans.offsets


class _Plans:
    """A fold of the offsets of plans, from a step on; plans abandoned later are removed."""

    def __init__(self, first: int) -> None:
        self.offsets: dict[int, int] = {}
        self._spine = Spine()
        self._first = first

    def apply(self, decoded: Decoded) -> None:
        """Applies an event; remembers the offsets of valid plans from the first step on."""
        if decoded.partition.stream != topics.EXPERIMENTS:
            return
        event = decoded.event
        self._spine.apply(decoded)
        if not isinstance(event, BatchPlanned | BatchAbandoned) or event.step < self._first:
            return
        # The spine keeps the offsets of the newest plans alone; at this step it still tells if the step's plan stands.
        offset = self._spine.plan_offsets.get(event.step)
        if offset is None:
            self.offsets.pop(event.step, None)
        elif offset == decoded.offset:
            self.offsets[event.step] = offset


class _History:
    """A fold of spine and weights, with the facts of a step however long ago."""

    def __init__(self, experiment: UUID, at_step: int) -> None:
        self.state = RunState(experiment)
        self.at_step = at_step
        self.checksums: dict[int, str] = {}
        """The checksums of the step's weights, by generation."""
        self._plans = _Plans(at_step)

    @property
    def plan_offset(self) -> int | None:
        """The offset of the step's plan; None if it has none."""
        return self._plans.offsets.get(self.at_step)

    def apply(self, decoded: Decoded) -> None:
        """Applies an event; remembers the checksums of the executions of step `at_step`."""
        event = decoded.event
        self.state.apply(decoded)
        self._plans.apply(decoded)
        if (
            isinstance(event, StepCompleted)
            and event.step == self.at_step
            and event.batch not in self.state.spine.batches.abandoned
        ):
            # For a step repeated in the log the first completion counts, as on the spine.
            self.checksums.setdefault(event.generation, event.checksum)


async def _shared(log: EventLog, history: _History) -> SharedHistory:
    """Returns the shared history up to a step; raises ConflictError for a step that cannot be continued."""
    state = history.state
    at_step = history.at_step
    spine = state.spine
    if at_step == 0:
        # The first generation's: later generations announce the same base model again.
        base = min((key for key in state.weights.published if key[0] == 0), default=None)
        if base is None:
            raise ConflictError("its base model was not published yet", field="at_step", fix="fork it once it runs")
        forked = ExperimentForked(
            parent=state.experiment,
            at_step=0,
            checksum=state.weights.published[base].step_checksum,
            stage=0,
            first_versions=(0,),
            decided_at_ns=0,
        )
        return SharedHistory(spine=spine, forked=forked)
    offset = history.plan_offset
    if not history.checksums or offset is None:
        raise ConflictError(
            f"step {at_step} was not executed; the last one is {spine.furthest}",
            field="at_step",
            fix=f"give a step from 0 to {spine.furthest}, or wait until it is trained",
        )
    plan = await _plan(log, state, at_step, offset)
    if not spine.first_versions.keys() >= set(range(plan.stage + 1)):
        raise ConflictError(
            f"the log plans step {at_step} in stage {plan.stage}, and has the beginning only of stages "
            f"{sorted(spine.first_versions)}",
            field="at_step",
            fix="see rftd verify; fork another experiment",
        )
    next_sequence, redo = await _position(log, state, plan, offset)
    forked = ExperimentForked(
        parent=state.experiment,
        at_step=at_step,
        # The newest generation's: older weights of the step are retired where they differ.
        checksum=history.checksums[max(history.checksums)],
        stage=plan.stage,
        first_versions=tuple(spine.first_versions[stage] for stage in range(plan.stage + 1)),
        decided_at_ns=plan.decided_at_ns,
        next_sequence=next_sequence,
        redo=redo,
    )
    return SharedHistory(spine=spine, forked=forked)


async def _plan(log: EventLog, state: RunState, step: int, offset: int) -> BatchPlanned:
    """Reads the plan of a step; raises LogLossError if it is missing."""
    partition = partition_of(topics.EXPERIMENTS, state.experiment)
    records = await log.read(partition, offset, max_records=1)
    if not records or records[0].offset != offset:
        raise LogLossError(f"the plan of step {step} is missing", where=f"{partition}@{offset}")
    return decode_as(records[0], BatchPlanned)


async def _position(log: EventLog, state: RunState, plan: BatchPlanned, offset: int) -> tuple[int, tuple[int, ...]]:
    """Returns the sequence at which a fork's data continues, and the lower ones to be drawn again by the fork.

    Both reflect the dispatcher's state at the planning of the batch, by the positions recorded in the plan.
    """
    spine = state.spine
    spec = state.spine.spec
    assert spec is not None
    forked = spine.forked
    first = spine.first_versions[plan.stage]
    inherited = forked if forked is not None and forked.at_step > first and forked.stage == plan.stage else None
    inherited_count = inherited.next_sequence if inherited else 0
    if spec.stages[plan.stage].kind == "train":
        own_steps = plan.step - (inherited.at_step if inherited else first)
        return inherited_count + own_steps * spec.stages[plan.stage].train_batch_size, ()
    stage_groups = _Groups(state.experiment, plan.stage)
    ends = {
        Partition(head.stream, head.partition): head.next_offset
        for head in plan.observed
        if head.stream == topics.TASKS
    }
    home = partition_of(topics.EXPERIMENTS, state.experiment)
    await fold_until(log, stage_groups, state.experiment, {home: offset + 1, **ends})
    reached = max(inherited_count, stage_groups.state.groups.next_sequence.get(plan.stage, 0))
    # A group drawn but neither open nor closed is lost: a fork would silently skip the group.
    if reached - inherited_count > stage_groups.count():
        raise ConflictError(
            f"the log has groups up to {reached}, but only {stage_groups.count()} of them",
            field="at_step",
            fix="see rftd verify (no-task-skipped); fork another experiment",
        )
    drawn = (*(inherited.redo if inherited else ()), *range(inherited_count, reached))
    settled = stage_groups.settled()
    return reached, tuple(sequence for sequence in drawn if sequence not in settled)


class _Groups:
    """A fold of a stage's groups: the open ones, the closed ones, and the closed ones with every member unused."""

    def __init__(self, experiment: UUID, stage: int) -> None:
        self.state = RunState(experiment)
        self._stage = stage
        self._closed: set[int] = set()

    def apply(self, decoded: Decoded) -> None:
        """Applies an event; remembers the closed groups of the stage."""
        self.state.apply(decoded)
        if isinstance(decoded.event, GroupClosed) and decoded.event.stage == self._stage:
            self._closed.add(decoded.event.sequence)

    def count(self) -> int:
        """Returns the number of groups named by the log, closed or open."""
        return len(self._closed) + len(self.state.groups.open)

    def settled(self) -> set[int]:
        """Returns the finished groups: at least one member is in a batch, or none of them can be trained."""
        return self._closed.difference(self._untouched())

    def _untouched(self) -> Iterator[int]:
        """Yields the sequences of groups with all members still waiting."""
        experiences = [
            experience
            for experience in self.state.replay_buffer.waiting.values()
            if experience.stage == self._stage and experience.dropped_by < 0
        ]
        waiting = Counter(experience.sequence for experience in experiences)
        yield from {
            experience.sequence for experience in experiences if waiting[experience.sequence] == experience.group_size
        }
