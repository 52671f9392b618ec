"""`Clerk`: the folds and the planner of a simulated experiment, which decides as a real one would."""

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
from rftd.workers.control.windows import Ask, Begin, admission_view, beginnings, request_of

_EXPERIMENT: Final = UUID(int=1)
"""Id of the simulated experiment."""
_TASKS: Final = Partition(topics.TASKS, 0)
"""Partition of the simulated dispatcher's events."""
_WEIGHTS: Final = partition_of(topics.WEIGHTS, _EXPERIMENT)
"""Partition of the simulated publications and answers."""
_SPINE: Final = partition_of(topics.EXPERIMENTS, _EXPERIMENT)
"""Partition of the simulated experiment's spine."""
_GROUP_IDS: Final = 1 << 64
"""First integer of the ids of groups; ids of experiences begin with 0."""
_EVENT_IDS: Final = 2 << 64
"""First integer of the ids of events, so that no two kinds of ids overlap."""
_EPOCH_NS: Final = 1_700_000_000_000_000_000
"""Reading of the clock at second 0."""


class Clerk:
    """Folds the events of one simulated stage, and asks the real planner and policy for decisions."""

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
        """Number of trained steps."""
        return self.state.spine.version

    def view(self, inflight_rollouts: int) -> PolicyView:
        """Returns the policy's view, given the simulation's number of unfinished rollouts."""
        return msgspec.structs.replace(view_of(self.state, self.stage), inflight_rollouts=inflight_rollouts)

    def admit(self, view: PolicyView) -> int:
        """Returns the number of groups that may start now."""
        return self._policy.admit(admission_view(self.stage, view))

    def beginnings(self, view: PolicyView, outstanding: int) -> Iterator[Begin | Ask | WindowHold]:
        """Yields how the next groups begin, for schedules with sync points; `outstanding` is the number of unfinished
        groups.
        """
        return beginnings(self.state, self.stage, view, outstanding=outstanding)

    def record_begin(self, begin: Begin) -> None:
        """Records a started group's weights and window."""
        # A real run folds this from the lease, which is never written in a simulation.
        self.state.groups.windows[0] = GroupWindow(begin.window, begin.place, begin.version)

    def ask(self, ask: Ask, now_s: float) -> WeightsRequested:
        """Folds the explorers' request for newer weights, and returns it."""
        request = request_of(self.state, ask)
        self._write(_SPINE, request, now_s)
        return request

    def answer(self, request: WeightsRequested, version: int, now_s: float) -> None:
        """Folds the trainer's answer to a request: the version it has published."""
        answered = WeightsAnswered(stage=request.stage, window=request.window, number=request.number, version=version)
        self._write(_WEIGHTS, answered, now_s)

    def close(self, group: int, members: Sequence[Member], now_s: float) -> None:
        """Folds the close of a group after its last rollout."""
        event = GroupClosed(
            group=UUID(int=_GROUP_IDS + group), sequence=group, stage=0, members=tuple(members), failed=0
        )
        self._write(_TASKS, event, now_s)

    def decide(self, now_s: float) -> bool:
        """Folds all retirements and plans due now; True if there were any."""
        decided = False
        # Until a hold: a real planner is asked again after each turn, at the same reading of the clock or a later one.
        while events := self._planner.decide(self._offsets, _now_ns(now_s)).events:
            for event in events:
                assert isinstance(event, BatchPlanned | ExperienceRetired)
                self._write(_SPINE, event, now_s)
            decided = True
        return decided

    def next_plan(self) -> BatchPlanned | None:
        """Returns the plan of the next batch to train; None before it is planned."""
        plan = self.state.spine.plans.get(self.version + 1)
        return plan.event if plan is not None else None

    def complete(self, plan: BatchPlanned, duration_s: float, now_s: float) -> None:
        """Folds the completion of the batch's training step, which took `duration_s` seconds."""
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
        """Folds the publication of a version; versions that a channel would no longer have are retired."""
        event = WeightsPublished(
            version=version, generation=0, stage=0, method="", path="", manifest="", checksum="", size_bytes=0
        )
        self._write(_WEIGHTS, event, now_s)
        # Like a real channel with `_kept` versions: a window on dropped weights must not begin.
        self.state.weights.published.pop((version - 1 - self._kept, 0), None)

    def stuck_error(self, now_s: float) -> WorkError:
        """Returns the error of a simulation in which nothing runs and nothing can begin."""
        books = self.state.replay_buffer.books
        return WorkError(
            f"nothing can continue after step {self.version}, {now_s:.1f} s: policy {self.stage.policy.kind!r} admits "
            f"no group and forms no batch of {books.produced - books.planned} experiences",
            fix="raise the bound or max_inflight_batches, or lower the batch size",
        )

    def _write(self, partition: Partition, event: Event, now_s: float) -> None:
        """Folds an event at the next offset of a partition, as if read from a log."""
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
    """Returns a second of virtual time as nanoseconds of the recorded clock."""
    return _EPOCH_NS + int(now_s * 1e9)
