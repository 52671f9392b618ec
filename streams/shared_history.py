"""What a fork shares: the history of an experiment up to one of its weight versions, read from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from uuid import UUID

import msgspec

from rftd.ops.errors import ConflictError, LogLossError, UsageError
from rftd.streams import topics
from rftd.streams.codec import Decoded, decode_as
from rftd.streams.deadletters import head_of, understood_with
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.events.task import GroupClosed
from rftd.streams.fencing import FenceView
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Spine
from rftd.streams.follower import Fold
from rftd.streams.log import EventLog
from rftd.streams.start import start_of_experiment
from rftd.streams.topics import Partition, partition_of


class SharedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment up to one weight version."""

    spine: Spine
    """Of the experiment that executed the step, as far as the log goes."""
    forked: ExperimentForked
    """What a fork of it begins with; without evaluations, which depend on what it evaluates."""


async def shared_history(log: EventLog, experiment: UUID, at_step: int) -> SharedHistory:
    """The history that a fork of `experiment` at weight version `at_step` shares.

    Of a fork's own shared steps it is the history of the experiment that made them. Raises NotFoundError,
    ConflictError if the step was not executed, UsageError for what no step can be.
    """
    if at_step < 0:
        raise UsageError(f"there is no step {at_step}", field="at_step", fix="give 0 for the base, or a trained step")
    while True:
        ends = {partition: mark.next_offset for partition, mark in (await log.heads()).items()}
        state = RunState(experiment)
        places = [partition_of(stream, experiment) for stream in (topics.EXPERIMENTS, topics.WEIGHTS)]
        await fold_until(log, state, experiment, {place: ends.get(place, 0) for place in places})
        forked = state.spine.forked
        if forked is None or at_step > forked.at_step:
            return await _shared(log, state, at_step)
        experiment = forked.parent


async def fold_until(log: EventLog, fold: Fold, experiment: UUID, ends: Mapping[Partition, int]) -> None:
    """Feeds the effective events of an experiment below `ends` to a fold. Raises NotFoundError."""
    starts, fences = await start_of_experiment(log, experiment), FenceView()
    for partition, end in ends.items():
        offset = starts.get(partition, 0)
        while offset < end and (records := await log.read(partition, offset)):
            for record in records:
                offset = record.offset + 1
                head = head_of(record)
                if record.offset >= end or head is None or head.experiment not in (None, experiment):
                    continue
                decoded = understood_with(head, record)
                if decoded is not None and fences.admit(partition, head, decoded.event):
                    fold.apply(decoded)


async def _shared(log: EventLog, state: RunState, at_step: int) -> SharedHistory:
    spine = state.spine
    if at_step == 0:
        base = min((key for key in state.weights.published if key[0] == 0), default=None)
        if base is None:
            raise ConflictError("its base model was not published yet", field="at_step", fix="fork it once it runs")
        forked = ExperimentForked(
            parent=state.experiment,
            at_step=0,
            checksum=state.weights.published[base].checksum,
            stage=0,
            first_versions=(0,),
            decided_at_ns=0,
        )
        return SharedHistory(spine=spine, forked=forked)
    generation = max((key[1] for key in spine.checksums if key[0] == at_step and key[1] >= 0), default=None)
    if generation is None or at_step not in spine.plan_offsets:
        raise ConflictError(
            f"step {at_step} was not executed; the last one is {spine.furthest}",
            field="at_step",
            fix=f"give a step from 0 to {spine.furthest}, or wait until it is trained",
        )
    plan = await _plan(log, state, at_step)
    next_sequence, redo = await _position(log, state, plan)
    forked = ExperimentForked(
        parent=state.experiment,
        at_step=at_step,
        checksum=spine.checksums[at_step, generation],
        stage=plan.stage,
        first_versions=tuple(spine.first_versions[stage] for stage in range(plan.stage + 1)),
        decided_at_ns=plan.decided_at_ns,
        next_sequence=next_sequence,
        redo=redo,
    )
    return SharedHistory(spine=spine, forked=forked)


async def _plan(log: EventLog, state: RunState, step: int) -> BatchPlanned:
    partition, offset = partition_of(topics.EXPERIMENTS, state.experiment), state.spine.plan_offsets[step]
    records = await log.read(partition, offset, max_records=1)
    if not records or records[0].offset != offset:
        raise LogLossError(f"the plan of step {step} is missing", where=f"{partition}@{offset}")
    return decode_as(records[0], BatchPlanned)


async def _position(log: EventLog, state: RunState, plan: BatchPlanned) -> tuple[int, tuple[int, ...]]:
    """Where the stage's data goes on, as the dispatcher stood when the batch was planned (rule 6)."""
    spine, spec = state.spine, state.spine.spec
    assert spec is not None
    forked, first = spine.forked, spine.first_versions[plan.stage]
    inherited = forked if forked is not None and forked.at_step > first and forked.stage == plan.stage else None
    taken = inherited.next_sequence if inherited else 0
    if spec.stages[plan.stage].kind == "train":
        own = plan.step - (inherited.at_step if inherited else first)
        return taken + own * spec.stages[plan.stage].train_batch_size, ()
    seen = _Groups(state.experiment, plan.stage)
    ends = {
        Partition(place.stream, place.partition): place.next_offset
        for place in plan.observed
        if place.stream == topics.TASKS
    }
    home = partition_of(topics.EXPERIMENTS, state.experiment)
    await fold_until(log, seen, state.experiment, {home: spine.plan_offsets[plan.step] + 1, **ends})
    reached = max(taken, seen.state.groups.next_sequence.get(plan.stage, 0))
    given = (*(inherited.redo if inherited else ()), *range(taken, reached))
    settled = seen.settled()
    return reached, tuple(sequence for sequence in given if sequence not in settled)


class _Groups:
    """A fold of one stage's groups: which were closed, and which of those wait untouched."""

    def __init__(self, experiment: UUID, stage: int) -> None:
        self.state = RunState(experiment)
        self._stage = stage
        self._closed: set[int] = set()

    def apply(self, decoded: Decoded) -> None:
        self.state.apply(decoded)
        if isinstance(decoded.event, GroupClosed) and decoded.event.stage == self._stage:
            self._closed.add(decoded.event.sequence)

    def settled(self) -> set[int]:
        """Groups that are over: a batch holds one of them at least, or none of them can be trained."""
        return self._closed.difference(self._untouched())

    def _untouched(self) -> Iterator[int]:
        entries = [entry for entry in self.state.ledger.waiting.values() if entry.stage == self._stage]
        waiting = Counter(entry.sequence for entry in entries)
        yield from {entry.sequence for entry in entries if waiting[entry.sequence] == entry.group_size}
