"""The folds and the planner of a simulated experiment: what they decide is what they would decide of a real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.errors import WorkError
from rftd.streams.events import experiment
from rftd.streams.events.batch import BatchPlanned, ExperienceRetired
from rftd.streams.events.registry import Event, definition_of
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.events.task import GroupClosed, Member
from rftd.streams.events.weights import WeightsAnswered, WeightsPublished, WeightsRequested
from rftd.streams.folds.groups import GroupWindow
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded, Head
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.schedule import has_windows, kept_versions
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.control.holds import WindowHold
from rftd.workers.control.planner import Planner, view_of
from rftd.workers.control.policies.policy import PolicyView
from rftd.workers.control.policies.registry import make_policy
from rftd.workers.control.simulator.unit import Flights
from rftd.workers.control.windows import Ask, Begin, as_admitted, beginnings, request_of

_EXPERIMENT: Final = UUID(int=1)
_TASKS: Final = Partition(topics.TASKS, 0)
_WEIGHTS: Final = partition_of(topics.WEIGHTS, _EXPERIMENT)
_SPINE: Final = partition_of(topics.EXPERIMENTS, _EXPERIMENT)
_GROUP_IDS: Final = 1 << 64
_EVENT_IDS: Final = 2 << 64
"""Ids of groups and of events begin here, so that none is another's; those of experiences begin with 0."""
_EPOCH_NS: Final = 1_700_000_000_000_000_000
"""The clock's reading at second 0."""


class Clerk:
    """Keeps the books of one stage."""

    def __init__(self, stage: StageSpec, flights: Flights) -> None:
        self.stage = stage
        self.state = RunState(_EXPERIMENT)
        self._planner = Planner(self.state, oldest_flight=lambda: flights.oldest_version)
        self._policy = make_policy(stage.policy)
        self._kept = kept_versions(stage) if has_windows(stage.synchronizer) else 0
        self._offsets = {_TASKS: 0, _SPINE: 0, _WEIGHTS: 0}
        self._ids = 0
        spec = ExperimentSpec(project="sim", name="async", job_dir="/", stages=(stage,), config={})
        self._write(_SPINE, experiment.ExperimentSubmitted(spec=spec), 0.0)
        self._write(_SPINE, experiment.ExperimentAccepted(start=()), 0.0)
        self._write(_SPINE, experiment.ExperimentStarted(), 0.0)
        self._write(_SPINE, experiment.StageStarted(stage=0, name=stage.name, first_version=0), 0.0)
        self._write(_SPINE, GenerationStarted(generation=0, version=0), 0.0)
        self.publish(0, 0.0)

    @property
    def version(self) -> int:
        """The number of steps trained."""
        return self.state.spine.version

    def view(self, inflight_rollouts: int) -> PolicyView:
        """The view of the policy, with the rollouts that the simulation has under way."""
        return msgspec.structs.replace(view_of(self.state, self.stage), inflight_rollouts=inflight_rollouts)

    def admit(self, view: PolicyView) -> int:
        """The number of groups that may start."""
        return self._policy.admit(as_admitted(self.stage, view))

    def beginnings(self, view: PolicyView, outstanding: int) -> Iterator[Begin | Ask | WindowHold]:
        """The beginnings of the next groups, if the schedule has sync points; so many groups are under way."""
        return beginnings(self.state, self.stage, view, outstanding=outstanding)

    def begun(self, begin: Begin) -> None:
        """Notes that a group was begun in this way."""
        # A real run folds this from the lease, which nobody writes here.
        self.state.groups.windows[0] = GroupWindow(begin.window, begin.place, begin.version)

    def ask(self, ask: Ask, now_s: float) -> WeightsRequested:
        """Writes that explorers ask for newer weights."""
        request = request_of(self.state, ask)
        self._write(_SPINE, request, now_s)
        return request

    def answer(self, request: WeightsRequested, version: int, now_s: float) -> None:
        """Writes that the trainer tells explorers what it has published."""
        answered = WeightsAnswered(stage=request.stage, window=request.window, number=request.number, version=version)
        self._write(_WEIGHTS, answered, now_s)

    def close(self, group: int, members: Sequence[Member], now_s: float) -> None:
        """Writes that every rollout of the group has ended."""
        event = GroupClosed(
            group=UUID(int=_GROUP_IDS + group), sequence=group, stage=0, members=tuple(members), failed=0
        )
        self._write(_TASKS, event, now_s)

    def decide(self, now_s: float) -> bool:
        """Retires and plans all that is due; True if anything was."""
        anything = False
        # Until it holds: a real planner is asked again after each turn, at the same reading of the clock or a
        # later one.
        while events := self._planner.decide(self._offsets, _now_ns(now_s)).events:
            for event in events:
                assert isinstance(event, BatchPlanned | ExperienceRetired)
                self._write(_SPINE, event, now_s)
            anything = True
        return anything

    def next_plan(self) -> BatchPlanned | None:
        """The batch that the trainer takes next, if it was planned."""
        plan = self.state.spine.plans.get(self.version + 1)
        return plan.event if plan is not None else None

    def complete(self, plan: BatchPlanned, duration_s: float, now_s: float) -> None:
        """Writes that the batch was trained."""
        step = StepCompleted(
            batch=plan.batch,
            step=plan.step,
            stage=0,
            generation=0,
            checksum="",
            items=len(plan.experiences),
            tokens=0,
            duration_s=duration_s,
        )
        self._write(_SPINE, step, now_s)

    def publish(self, version: int, now_s: float) -> None:
        """Writes that the weights are announced; the ones that a channel would no longer keep are gone."""
        event = WeightsPublished(
            version=version, generation=0, stage=0, method="", path="", manifest="", checksum="", size_bytes=0
        )
        self._write(_WEIGHTS, event, now_s)
        # As a real channel that keeps so many: a window on weights that are gone must not begin.
        self.state.weights.published.pop((version - 1 - self._kept, 0), None)

    def stuck(self, now_s: float) -> WorkError:
        """The error of a simulation in which nothing is under way and nothing can begin."""
        books = self.state.replay_buffer.books
        return WorkError(
            f"nothing can go on after step {self.version}, {now_s:.1f} s: policy {self.stage.policy.kind!r} admits "
            f"no group and forms no batch of {books.produced - books.planned} experiences",
            fix="raise the bound or max_inflight_batches, or lower the batch size",
        )

    def _write(self, partition: Partition, event: Event, now_s: float) -> None:
        definition = definition_of(type(event))
        self._ids = self._ids + 1
        head = Head(
            id=UUID(int=_EVENT_IDS + self._ids),
            type=definition.name,
            version=definition.version,
            experiment=_EXPERIMENT,
            source="sim",
            time_ns=_now_ns(now_s),
        )
        offset = self._offsets[partition]
        self._offsets[partition] = offset + 1
        self.state.apply(Decoded(partition, offset, head, event))


def _now_ns(now_s: float) -> int:
    return _EPOCH_NS + int(now_s * 1e9)
