"""What one experiment's events say, collected from every partition; small: ids and places, no tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from rftd.streams.codec import Decoded
from rftd.streams.events import batch, checkpoint, experience, experiment, step, task, weights
from rftd.streams.spec import ExperimentSpec


class Produced(NamedTuple):
    """Where a rollout's experience lies."""

    group: UUID
    rollout: int
    partition: int
    offset: int
    oldest_version: int


class Execution(NamedTuple):
    """One step.completed, in spine order."""

    event: step.StepCompleted
    offset: int


class Evidence:
    """Everything the rules look at."""

    def __init__(self, id: UUID) -> None:
        self.id = id
        self.spec: ExperimentSpec | None = None
        self.forked: experiment.ExperimentForked | None = None
        self.parent: Evidence | None = None
        """Of the experiment whose history it shares, if the log holds it."""
        self.state = "unknown"
        self.void = 0
        self.leased: dict[tuple[int, int], set[tuple[int, int]]] = {}
        """(row, epoch) of each (stage, sequence) that was leased."""
        self.leased_groups: set[UUID] = set()
        self.windows: dict[tuple[int, int], set[int]] = {}
        """Weight versions that the groups of each (stage, window) were to begin on."""
        self.overdue: set[tuple[int, int]] = set()
        """Those of them that waited too long for theirs."""
        self.produced: dict[UUID, Produced] = {}
        self.terminal: Counter[tuple[UUID, int]] = Counter()
        self.closed: dict[UUID, task.GroupClosed] = {}
        self.closed_twice: list[UUID] = []
        self.retried: list[task.TaskRetried] = []
        self.closed_at: dict[tuple[int, int], UUID] = {}
        self.plans: dict[int, tuple[batch.BatchPlanned, int]] = {}
        self.planned_twice: list[int] = []
        self.retired: dict[UUID, list[str]] = {}
        self.retired_at: dict[UUID, int] = {}
        """Where on the spine each was, first."""
        self.executions: list[Execution] = []
        self.generations: list[tuple[step.GenerationStarted, int]] = []
        self.stages: dict[int, int] = {}
        """First version of each stage that started."""
        self.published: list[weights.WeightsPublished] = []
        self.checkpoints: list[checkpoint.CheckpointCommitted] = []

    def take(self, decoded: Decoded) -> None:
        """Takes in one effective event."""
        event = decoded.event
        match event:
            case experience.ExperienceProduced():
                self._produced(event, decoded)
            case task.TaskLeased():
                self.leased.setdefault((event.stage, event.sequence), set()).add((event.row, event.epoch))
                self.leased_groups.add(event.group)
                if event.window >= 0:
                    self.windows.setdefault((event.stage, event.window), set()).add(event.min_version)
            case task.GroupClosed():
                if event.group in self.closed:
                    self.closed_twice.append(event.group)
                self.closed.setdefault(event.group, event)
                self.closed_at[decoded.partition.number, decoded.offset] = event.group
            case task.TaskRetried():
                self.leased.setdefault((event.stage, event.sequence), set()).add((event.row, event.epoch))
                self.leased_groups.add(event.retry)
                self.retried.append(event)
            case batch.BatchPlanned():
                if event.step in self.plans:
                    self.planned_twice.append(event.step)
                self.plans[event.step] = (event, decoded.offset)
            case batch.BatchAbandoned():
                self.plans.pop(event.step, None)
            case batch.ExperienceRetired():
                for id in event.experiences:
                    self.retired.setdefault(id, []).append(event.reason)
                    self.retired_at.setdefault(id, decoded.offset)
            case step.StepCompleted():
                self.executions.append(Execution(event, decoded.offset))
            case step.GenerationStarted():
                self.generations.append((event, decoded.offset))
            case weights.WeightsOverdue():
                self.overdue.add((event.stage, event.window))
            case weights.WeightsPublished():
                self.published.append(event)
            case checkpoint.CheckpointCommitted():
                self.checkpoints.append(event)
            case experience.RolloutFailed():
                self.terminal[event.group, event.rollout] += 1
            case _:
                self._life(event)

    @property
    def shared(self) -> int:
        """The last step that another experiment's history made; 0 without one."""
        return self.forked.at_step if self.forked else 0

    def history(self, until: int | None = None) -> Iterator[tuple[int, Evidence, batch.BatchPlanned]]:
        """Every plan up to step `until`, the shared ones with the experiment that made them."""
        if self.parent is not None and self.shared:
            yield from self.parent.history(self.shared if until is None else min(until, self.shared))
        for number, (plan, _) in self.plans.items():
            if until is None or number <= until:
                yield number, self, plan

    def _produced(self, event: experience.ExperienceProduced, decoded: Decoded) -> None:
        oldest = min((span.version for span in event.spans), default=0)
        self.produced.setdefault(
            event.experience,
            Produced(event.group, event.rollout, decoded.partition.number, decoded.offset, oldest),
        )
        self.terminal[event.group, event.rollout] += 1

    def _life(self, event: object) -> None:
        match event:
            case experiment.ExperimentSubmitted() if self.spec is not None:
                pass  # its other half
            case experiment.ExperimentSubmitted():
                self.spec = event.spec
                self.state = "submitted"
            case experiment.ExperimentForked():
                self.forked = event
            case experiment.StageStarted():
                self.stages[event.stage] = event.first_version
            case experiment.ExperimentStarted() | experiment.ExperimentResumed():
                self.state = "running"
            case experiment.ExperimentPaused():
                self.state = "paused"
            case experiment.ExperimentCompleted():
                self.state = "completed"
            case experiment.ExperimentFailed():
                self.state = "failed"
            case experiment.ExperimentCancelled():
                self.state = "cancelled"
            case experiment.ExperimentRejected():
                self.state = "rejected"
            case _:
                pass
