"""`Evidence`: the memory of one experiment while its records are read; none of it grows with its experiences."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import xxhash

from rftd.streams.events import batch, checkpoint, experiment, step, task, weights
from rftd.streams.folds.task_queue import TaskQueues
from rftd.streams.log import topics
from rftd.streams.log.spine_digest import SpineTrail
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.verify.facts import STEP, Facts
from rftd.streams.verify.report import AcceptedLoss


class Other(NamedTuple):
    """A group that has the sequence of another one: a task that was given out once more."""

    leased: bool
    closed: int
    """The place of its close, as a number; 0 while it is open."""
    event: int
    members: int
    failed: int


class Draws:
    """The rows that were drawn of one taskset: eight bytes for each, all that grows with tasks."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._rows: list[array[int]] = []

    def add(self, event: task.TasksDrawn) -> None:
        """Takes in a draw, as the fold does: one that is not of later places has no effect."""
        if not self._firsts or event.first >= self._firsts[-1] + len(self._rows[-1]):
            self._firsts.append(event.first)
            self._rows.append(array("q", event.rows))

    def row_at(self, place: int) -> int | None:
        """The row that was drawn for a place of the taskset; None if none was."""
        number = bisect_right(self._firsts, place) - 1
        if number < 0 or place - self._firsts[number] >= len(self._rows[number]):
            return None
        return self._rows[number][place - self._firsts[number]]


class Scores(NamedTuple):
    """One range of held-out rows, scored."""

    rows: int
    answers: int
    """The answers to all of them."""
    reward: float
    """The sum of the answers' rewards."""
    tokens: float
    """The sum of the answers' lengths, in tokens."""
    parts: dict[str, float]
    """The sums of the named parts of the answers' rewards."""
    right: int | None
    """The answers that are right; None if the scores do not say which are."""


@dataclass(slots=True)
class EvalEvidence:
    """An evaluation that was begun, or that somebody scored."""

    leases: set[int] = field(default_factory=set)
    """Its leases with their holders, as numbers (`rftd.streams.verify.answers`)."""
    scores: dict[int, dict[int, Scores]] = field(default_factory=dict)
    """The scores of each range, by its first row, then by lease and writer, in the order of the log."""

    def ranges(self) -> list[Scores]:
        """The score of each range that counts: the first one that the holder of a lease wrote."""
        scored = (next((scores[key] for key in scores if key in self.leases), None) for scores in self.scores.values())
        return [scores for scores in scored if scores is not None]


@dataclass(slots=True)
class Evidence:
    """Counters, open questions, and records of which there are few."""

    id: UUID
    index: int
    """The number under which its facts are kept."""
    spec: ExperimentSpec | None = None
    forked: experiment.ExperimentForked | None = None
    parent: Evidence | None = None
    """The evidence of the experiment whose history it shares, if the log holds it."""
    state: str = "unknown"
    losses_accepted: set[experiment.HeadRef] = field(default_factory=set)
    """Lost heads without which somebody let it go on."""
    accepted_losses: list[AcceptedLoss] = field(default_factory=list)
    void: int = 0
    groups_closed: int = 0
    steps_executed: int = 0
    executions: int = 0
    last_step: int = 0
    """The highest step that was planned or executed."""
    last_planned: int = 0
    """The highest step whose plan stands."""
    others: dict[tuple[int, int], dict[int, Other]] = field(default_factory=dict)
    """Further groups of a sequence, by (stage, sequence), then by the group's id."""
    group_stages: set[int] = field(default_factory=set)
    """Stages that have groups."""
    overdue: set[tuple[int, int]] = field(default_factory=set)
    """(stage, window) that waited too long for their weights."""
    windows: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """The versions of windows that were given out on several, by (stage, window)."""
    row_stages: dict[tuple[int, str], dict[int, int]] = field(default_factory=dict)
    """The number of rows planned in each epoch, by (stage, dataset)."""
    recent_plans: dict[int, batch.BatchPlanned] = field(default_factory=dict)
    abandoned: set[int] = field(default_factory=set)
    """The low halves of batches whose steps have no effect."""
    generations: list[step.GenerationStarted] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)
    """The last step of each generation."""
    checksums: dict[tuple[int, int], int] = field(default_factory=dict)
    """The checksums, by (step, generation), of later executions of a step and of what generations began with."""
    stages: dict[int, int] = field(default_factory=dict)
    """The first version of each stage that started."""
    evals: dict[UUID, EvalEvidence | None] = field(default_factory=dict)
    """The evaluations; None once one is completed."""
    base_checksums: set[str] = field(default_factory=set)
    """The checksums of version 0, as it was published."""
    weights: dict[tuple[int, int], weights.WeightsPublished] = field(default_factory=dict)
    """The weights that are published and not retired, by (version, generation)."""
    offers: dict[int, task.TasksOffered] = field(default_factory=dict)
    """The largest offer of each stage that serves."""
    queues: TaskQueues = field(default_factory=TaskQueues)
    """The tasks that were added to its stages."""
    draws: dict[tuple[int, int], Draws] = field(default_factory=dict)
    """The rows that selectors drew, by (stage, taskset)."""
    leased_rows: dict[int, int] = field(default_factory=dict)
    """The highest row of a lease plus one, by stage."""
    checkpoints: dict[tuple[int, int], checkpoint.CheckpointCommitted] = field(default_factory=dict)
    """The checkpoints that are committed and not deleted, by (step, generation)."""
    saved_step: int = -1
    """The last step of which a checkpoint was committed."""
    unsaved: set[int] = field(default_factory=set)
    """Steps after which a trainer went on, and of which a checkpoint is due."""
    files_here: bool = True
    """False once its files are in an archive, or removed."""
    imported: experiment.ExperimentImported | None = None
    """What its newest import says of the files that came along; None unless it was imported."""
    not_looked_at: dict[str, int] = field(default_factory=dict)
    """What a look at its files could not see, by what and where it is."""
    trail: SpineTrail = field(default_factory=SpineTrail)
    """The digest of its spine."""
    marks: dict[tuple[int, int], step.SpineMark] = field(default_factory=dict)
    """The marks of the (step, generation) pairs that are to be saved."""
    trainer_fences: list[tuple[UUID, str]] = field(default_factory=list)
    """The owner and the place of each fence of the trainer."""
    fence_owners: dict[str, set[UUID]] = field(default_factory=dict)
    """The owners of each role of the daemon."""
    drawn_last: dict[str, int] = field(default_factory=dict)
    """The version from which each worker drew tokens last."""
    workers: set[UUID] = field(default_factory=set)
    leased_to: set[UUID] = field(default_factory=set)
    """The workers that leases were given to."""
    produced: int = 0
    members: int = 0
    planned: int = 0
    retired_after_use: int = 0
    """Members that were planned and retired before their last use."""
    waiting: int = 0
    left: int = 0
    """Members that are neither planned for the last time nor retired."""
    a_left: str = ""
    """The place of one of them."""
    late: int = 0
    retired: Counter[str] = field(default_factory=Counter)
    life: set[UUID] = field(default_factory=set)
    """The ids of the events of its life that were taken in: a repetition must not change its state again."""

    @property
    def ended(self) -> bool:
        """True once its life is over."""
        return self.state in ("completed", "failed", "cancelled", "rejected")

    def lost_some(self, stream: str) -> bool:
        """True if a person let it go on without some records of the stream."""
        return any(lost.stream == stream for lost in self.losses_accepted)

    @property
    def shared(self) -> int:
        """The last step that another experiment's history made; 0 without one."""
        return self.forked.at_step if self.forked else 0

    def checksum(self, facts: Facts, number: int, generation: int) -> int | None:
        """The checksum of the weights that a generation made, as `hashed`; None if it made none, as far as known."""
        known = self.checksums.get((number, generation))
        if known is not None or not 0 < number <= self.last_step:
            return known
        page, at = facts.steps.row(self.index, number)
        _, _, checksum, first, executed, _ = STEP.unpack_from(page, at)
        return int(checksum) if executed and first == generation else None

    def checksums_of(self, facts: Facts, number: int) -> set[int]:
        """The checksums of every execution of a step, as `hashed`."""
        found = {checksum for (step, _), checksum in self.checksums.items() if step == number}
        if 0 < number <= self.last_step:
            page, at = facts.steps.row(self.index, number)
            _, _, checksum, _, executed, _ = STEP.unpack_from(page, at)
            found |= {int(checksum)} if executed else set()
        return found

    def plan_place(self, facts: Facts, number: int) -> int | None:
        """The offset on the spine of the plan of a step that stands; None without one."""
        if not 0 < number <= self.last_step:
            return None
        page, at = facts.steps.row(self.index, number)
        place = STEP.unpack_from(page, at)[1]
        return int(place) - 1 if place else None

    @property
    def next_planned(self) -> int:
        """The step of which the next plan is: planners leave none out."""
        return 1 + max(self.last_planned, self.shared, *self.stages.values())

    def owners_of(self, until: int) -> Iterator[tuple[Evidence, int]]:
        """The owners of the history up to step `until`, oldest first, each with the last step that it may have made."""
        # An ancestor's steps after the one at which its child left it are no part of this history.
        if self.parent is not None and self.shared:
            yield from self.parent.owners_of(min(until, self.shared))
        yield self, until

    @property
    def spine(self) -> topics.Partition:
        """The partition of its plans and steps."""
        return topics.partition_of(topics.EXPERIMENTS, self.id)


def hashed(checksum: str) -> int:
    """A checksum of weights as a number of 64 bits, which fits into a row."""
    return int(xxhash.xxh3_64_intdigest(checksum.encode()))
