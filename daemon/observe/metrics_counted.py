"""`Counted`: the fields of an experience used by the metrics; `SeenPlans`: the effective plans."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events.batch import BatchAbandoned, BatchPlanned
from rftd.streams.events.registry import Event
from rftd.streams.events.step import StepCompleted
from rftd.streams.log.bounds import Count, Finite, Index, Seconds


class Shape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The dtype and shape of an array in an event, decoded without the array's bytes."""

    dtype: str
    """Type of the array's numbers."""
    shape: tuple[Count, ...]
    """Length of each dimension."""

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0


class Counted(Event, frozen=True, kw_only=True, gc=False):
    """The fields of `experience.produced` read by the metrics, decoded without the arrays' bytes."""

    experience: UUID
    """Id of the experience."""
    lease: UUID = UUID(int=0)
    """Id of the answered lease."""
    stage: Index
    """Number of the stage."""
    tokens: Shape
    """Shape of the token array: its first dimension is the number of tokens."""
    prompt_tokens: Count
    """Number of prompt tokens."""
    reward: Finite
    """Reward of the rollout."""
    finish: str = "stop"
    """Reason for the end of generation."""
    duration_s: Seconds = 0.0
    """Duration of the rollout in seconds."""
    turns: Count = 0
    """Number of the model's answers in the rollout; 0 if not counted."""


class _Planned:
    """The newest plans of one experiment."""

    def __init__(self) -> None:
        self.last = -1
        """Last step planned or executed."""
        self.open: dict[int, UUID] = {}
        """Batches of steps not executed yet."""


class SeenPlans:
    """Plans read since the daemon's start, so that a step is counted once, unless its batch was abandoned."""

    def __init__(self) -> None:
        self._planned: dict[UUID, _Planned] = {}
        """Plans of each experiment under way."""

    def counts(self, experiment: UUID, event: Event) -> bool:
        """Records an effective event; returns False for a plan that must not be counted, because its step has one
        already.
        """
        # Records before the feed's beginning are unknown, so the first plan counts, whatever its step.
        match event:
            case BatchPlanned():
                return self._count_plan(self._planned.setdefault(experiment, _Planned()), event)
            case BatchAbandoned() if experiment in self._planned:
                self._forget_plan(self._planned[experiment], event)
            case StepCompleted() if experiment in self._planned:
                self._close_plan(self._planned[experiment], event)
            case _:
                pass
        return True

    def forget(self, experiment: UUID) -> None:
        """Drops the recorded plans of an ended experiment, so that memory stays bounded."""
        self._planned.pop(experiment, None)

    def _count_plan(self, planned: _Planned, event: BatchPlanned) -> bool:
        """Records a plan; returns False if its step was planned before, or is not the next one while plans are open."""
        if event.step <= planned.last or (planned.open and event.step != planned.last + 1):
            return False
        planned.last = event.step
        planned.open[event.step] = event.batch
        return True

    def _forget_plan(self, planned: _Planned, event: BatchAbandoned) -> None:
        """Forgets the plan of an abandoned batch: its step may be planned again."""
        if planned.open.get(event.step) == event.batch:
            del planned.open[event.step]
            planned.last = max(planned.open, default=event.step - 1)

    def _close_plan(self, planned: _Planned, event: StepCompleted) -> None:
        # An executed step had an effective plan: if its batch is another one, the recorded plans were void.
        """Closes the plans up to an executed step, and forgets plans that turn out void."""
        if (event.step in planned.open and planned.open[event.step] != event.batch) or event.step > planned.last:
            planned.open.clear()
            planned.last = event.step
        planned.open = {step: batch for step, batch in planned.open.items() if step > event.step}
