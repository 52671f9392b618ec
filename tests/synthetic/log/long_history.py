"""A history of any length, event by event, straight into folds: what a run of that length would leave in its log.

Groups of GROUP are leased, rolled out, closed, planned in batches of BATCH, trained, published and retired; one in a
thousand is retried, one step in a hundred evaluated. Nothing is encoded and nothing kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from rftd.ops.ids import derive
from rftd.streams.events import batch, experience, step, task, weights
from rftd.streams.events.registry import Event
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.envelope import Decoded, Head
from rftd.streams.log.group_id import group_id
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.log.writers import source_of

EXPERIMENT: Final = UUID(int=0x5EED)
GROUP: Final = 8
BATCH: Final = 64
STANDING: Final = 4
"""Versions whose weights are kept."""
WORKER: Final = UUID(int=7)
_SLOTS: Final = 8
_TOKENS: Final = Array.of([1, 2], "u4")
_NONE: Final = Array.of([], "f4")
_MASK: Final = Array.of([], "u1")


class LongHistory:
    """Writes one step after the other; `waiting` experiences stay ahead of the trainer."""

    def __init__(self, *, waiting: int = 2 * BATCH) -> None:
        self.events = 0
        self.experiences = 0
        self.version = 0
        self._groups = 0
        self._ahead = waiting
        self._offsets: dict[Partition, int] = {}
        self._waiting: deque[tuple[batch.GroupRef, task.Member, int]] = deque()
        self._planned: deque[UUID] = deque()

    def skip(self, state: RunState, experiences: int) -> None:
        """So many experiences count as trained and forgotten: what a fold keeps of them is known without it."""
        assert not self.events, "only at the beginning"
        for decoded in self.steps(1):
            state.apply(decoded)
        groups, versions = experiences // GROUP, experiences // BATCH
        for closed in (state.groups._closed, state.replay_buffer._closed):
            closed.by_stage[0].cover(0, groups)
        for batches in (state.spine.batches, state.replay_buffer._batches):
            batches.steps.cover(1, versions + 1)
        state.spine.executed.of(0).cover(1, versions + 1)
        state.weights.retired.of(0).cover(1, versions - STANDING + 1)
        self._groups = max(self._groups, groups)
        self.version = state.spine.planned = state.spine.furthest = state.spine.version = versions

    def steps(self, count: int) -> Iterator[Decoded]:
        """The events of so many more steps."""
        if not self.version:
            yield self._decoded(step.GenerationStarted(generation=0, version=0))
        for _ in range(count):
            while len(self._waiting) < BATCH + self._ahead:
                yield from self._group()
            yield self._plan()
            self.version += 1
            yield from self._step()

    def _group(self) -> Iterator[Decoded]:
        sequence = self._groups
        self._groups += 1
        group, slot = group_id(EXPERIMENT, 0, sequence), sequence % _SLOTS
        lease = derive(group, "lease", 1)
        leased = task.TaskLeased(
            lease=lease,
            slot=slot,
            worker=WORKER,
            group=group,
            sequence=sequence,
            stage=0,
            row=sequence % 1000,
            epoch=sequence // 1000,
            rollouts=tuple(range(GROUP)),
            repeat_times=GROUP,
            attempt=1,
            deadline_s=60.0,
            min_version=self.version,
        )
        yield self._decoded(leased, Partition(topics.TASKS, slot))
        members = []
        for rollout in range(GROUP):
            produced = self._decoded(self._produced(group, lease, rollout), partition_of(topics.EXPERIENCES, group))
            event = produced.event
            assert isinstance(event, experience.ExperienceProduced)
            members.append(
                task.Member(
                    event.experience,
                    rollout,
                    produced.partition.number,
                    produced.offset,
                    0.5,
                    0.0,
                    2,
                    self.version,
                    self.version,
                )
            )
            yield produced
        if sequence % 100 == 0:
            gone = task.TaskExpired(lease=lease, slot=slot, reason="again")
            yield self._decoded(gone, Partition(topics.TASKS, slot))
        closed = task.GroupClosed(group=group, sequence=sequence, stage=0, members=tuple(members), failed=0, busy_ms=9)
        decoded = self._decoded(closed, partition_of(topics.TASKS, EXPERIMENT))
        reference = batch.GroupRef(group, decoded.partition.number, decoded.offset)
        self._waiting.extend((reference, member, index) for index, member in enumerate(members))
        self.experiences += GROUP
        yield decoded

    def _produced(self, group: UUID, lease: UUID, rollout: int) -> experience.ExperienceProduced:
        return experience.ExperienceProduced(
            experience=derive(group, "experience", rollout),
            group=group,
            rollout=rollout,
            stage=0,
            lease=lease,
            tokens=_TOKENS,
            prompt_tokens=2,
            loss_mask=_MASK,
            logprobs=_NONE,
            spans=(experience.Span(self.version, 0, 0, 0),),
            reward=0.5,
            duration_s=0.1,
        )

    def _plan(self) -> Decoded:
        taken = [self._waiting.popleft() for _ in range(BATCH)]
        groups = list(dict.fromkeys(reference for reference, _, _ in taken))
        places = {reference: number for number, reference in enumerate(groups)}
        number = self.version + 1
        id = derive(EXPERIMENT, "batch", number, 0)
        self._planned.append(id)
        planned = batch.BatchPlanned(
            batch=id,
            step=number,
            stage=0,
            experiences=tuple(
                batch.ExperienceItem(member.experience, member.partition, member.offset, places[reference], index, 0, 1)
                for reference, member, index in taken
            ),
            groups=tuple(groups),
            observed=(),
            decided_at_ns=number,
        )
        return self._decoded(planned)

    def _step(self) -> Iterator[Decoded]:
        version, checksum = self.version, f"{self.version:032x}"
        done = step.StepCompleted(
            batch=self._planned.popleft(),
            step=version,
            stage=0,
            generation=0,
            checksum=checksum,
            items=BATCH,
            tokens=BATCH,
            duration_s=0.1,
        )
        yield self._decoded(done)
        published = weights.WeightsPublished(
            version=version,
            generation=0,
            stage=0,
            method="checkpoint",
            path=f"/weights/v{version}-g0",
            manifest=checksum,
            checksum=checksum,
            size_bytes=1000,
        )
        yield self._decoded(published, partition_of(topics.WEIGHTS, EXPERIMENT))
        if version > STANDING:
            retired = weights.WeightsRetired(version=version - STANDING, generation=0, reason="newer versions exist")
            yield self._decoded(retired, partition_of(topics.WEIGHTS, EXPERIMENT))
        if version % 100 == 0:
            id = derive(EXPERIMENT, "eval", 0, version, 0)
            scored = step.EvalCompleted(
                eval=id, stage=0, taskset="held", version=version, generation=0, rows=4, score=0.5
            )
            yield self._decoded(scored)

    def _decoded(self, event: Event, partition: Partition | None = None) -> Decoded:
        place = partition or partition_of(topics.EXPERIMENTS, EXPERIMENT)
        offset = self._offsets.get(place, 0)
        self._offsets[place] = offset + 1
        self.events += 1
        head = Head(
            id=UUID(int=1 << 100 | self.events),
            type=type(event).__name__,
            version=1,
            experiment=EXPERIMENT,
            source=source_of("explorer", WORKER),
            time_ns=self.events,
        )
        return Decoded(place, offset, head, event)
