"""`Evidence`: what the checker remembers of one experiment while reading; nothing in it grows with the experiences."""

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


class SiblingGroup(NamedTuple):
    """A further group for the task of another group: leased once more on request."""

    leased: bool
    """True once one of its rollouts was leased."""
    closed: int
    """Position of the group.closed as a number; 0 while the group is open."""
    event: int
    """The low half of the id of the event that closed the group; 0 while it is open."""
    members: int
    """Number of experiences of the closed group."""
    failed: int
    """Number of failed rollouts of the closed group."""


class Draws:
    """Rows drawn by the selector of one taskset, by the numbers of the draws; in memory, eight bytes for each row."""

    def __init__(self) -> None:
        """Begins without a draw."""
        self._firsts: list[int] = []
        self._rows: list[array[int]] = []

    def add(self, event: task.TasksDrawn) -> None:
        """Adds a draw; like in the fold, a draw beginning before the end of the last one is ignored."""
        if not self._firsts or event.first >= self._firsts[-1] + len(self._rows[-1]):
            self._firsts.append(event.first)
            self._rows.append(array("q", event.rows))

    def row_at(self, draw_number: int) -> int | None:
        """Returns the row drawn with a number of the taskset; None if it was not drawn."""
        number = bisect_right(self._firsts, draw_number) - 1
        if number < 0 or draw_number - self._firsts[number] >= len(self._rows[number]):
            return None
        return self._rows[number][draw_number - self._firsts[number]]


class Scores(NamedTuple):
    """The sums of one scored range of held-out rows."""

    rows: int
    """Number of rows in the range."""
    answers: int
    """Number of answers to all of the rows."""
    reward: float
    """The sum of the answers' rewards."""
    tokens: float
    """The sum of the answers' lengths, in tokens."""
    parts: dict[str, float]
    """The sums of the named parts of the answers' rewards."""
    right: int | None
    """Number of right answers; None if the scores do not report correctness."""


@dataclass(slots=True)
class EvalEvidence:
    """Leases and scores of one evaluation."""

    leases: set[int] = field(default_factory=set)
    """Its leases with their holders, as numbers (`rftd.streams.verify.answers`)."""
    scores: dict[int, dict[int, Scores]] = field(default_factory=dict)
    """The scores of each range, by its first row, then by lease and writer, in the order of the log."""

    def ranges(self) -> list[Scores]:
        """Returns the score that counts for each range of rows: the first one by a lease's holder."""
        scored = (next((scores[key] for key in scores if key in self.leases), None) for scores in self.scores.values())
        return [scores for scores in scored if scores is not None]


@dataclass(slots=True)
class Evidence:
    """Counters and open questions about one experiment, with its few records of rare types."""

    id: UUID
    """Id of the experiment."""
    index: int
    """The number of the experiment within the check, stored with its facts."""
    spec: ExperimentSpec | None = None
    """Specification of the experiment; None until its submission was read."""
    forked: experiment.ExperimentForked | None = None
    """The event of a fork's beginning; None for other experiments."""
    parent: Evidence | None = None
    """The evidence of a fork's parent, if the parent is in the log."""
    state: str = "unknown"
    """State of the experiment, such as `running`, by its life events."""
    losses_accepted: set[experiment.HeadRef] = field(default_factory=set)
    """Lost heads accepted by a person, letting the experiment continue."""
    accepted_losses: list[AcceptedLoss] = field(default_factory=list)
    """The accepted losses, for the report."""
    void: int = 0
    """Number of records without effect: of a role not owned by the writer, or plans out of turn."""
    groups_closed: int = 0
    """Number of closed groups."""
    steps_executed: int = 0
    """Number of steps executed at least once."""
    executions: int = 0
    """Number of executions of steps, repeated ones included."""
    last_step: int = 0
    """The highest step planned or executed."""
    last_planned: int = 0
    """Highest step with a plan not abandoned."""
    siblings: dict[tuple[int, int], dict[int, SiblingGroup]] = field(default_factory=dict)
    """Further groups of a sequence, by (stage, sequence), then by the group's id."""
    group_stages: set[int] = field(default_factory=set)
    """Stages with groups."""
    overdue: set[tuple[int, int]] = field(default_factory=set)
    """(stage, window) that waited too long for their weights."""
    windows: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """The weight versions of windows leased with several of them, by (stage, window)."""
    row_stages: dict[tuple[int, str], dict[int, int]] = field(default_factory=dict)
    """The number of rows planned in each epoch, by (stage, dataset)."""
    recent_plans: dict[int, batch.BatchPlanned] = field(default_factory=dict)
    """The newest plans, by step."""
    abandoned: set[int] = field(default_factory=set)
    """Lower halves of the ids of abandoned batches; steps executing them have no effect."""
    generations: list[step.GenerationStarted] = field(default_factory=list)
    """The generations in the order of their starts."""
    reached: dict[int, int] = field(default_factory=dict)
    """The last step of each generation; at first, the version from which the generation started."""
    checksums: dict[tuple[int, int], int] = field(default_factory=dict)
    """The checksums, by (step, generation), of later executions of a step and of generations' first weights."""
    stages: dict[int, int] = field(default_factory=dict)
    """The first version of each started stage."""
    evals: dict[UUID, EvalEvidence | None] = field(default_factory=dict)
    """The evaluations; None once completed."""
    base_checksums: set[str] = field(default_factory=set)
    """The checksums of version 0, as published."""
    weights: dict[tuple[int, int], weights.WeightsPublished] = field(default_factory=dict)
    """The weights published and not retired, by (version, generation)."""
    offers: dict[int, task.TasksOffered] = field(default_factory=dict)
    """The largest offer of each serving stage."""
    queues: TaskQueues = field(default_factory=TaskQueues)
    """The tasks added to its stages."""
    draws: dict[tuple[int, int], Draws] = field(default_factory=dict)
    """The rows drawn by selectors, by (stage, taskset)."""
    leased_rows: dict[int, int] = field(default_factory=dict)
    """The highest row of a lease plus one, by stage."""
    checkpoints: dict[tuple[int, int], checkpoint.CheckpointCommitted] = field(default_factory=dict)
    """The checkpoints committed and not deleted, by (step, generation)."""
    saved_step: int = -1
    """The last step with a committed checkpoint."""
    unsaved: set[int] = field(default_factory=set)
    """Steps with a due checkpoint that were followed by another step, without a checkpoint read so far."""
    files_here: bool = True
    """False once its files are in an archive, or removed."""
    imported: experiment.ExperimentImported | None = None
    """Its newest import, with the list of files left out; None unless it was imported."""
    not_looked_at: dict[str, int] = field(default_factory=dict)
    """Number of parts invisible to a check of its files, by kind and location."""
    trail: SpineTrail = field(default_factory=SpineTrail)
    """The digest of its spine."""
    marks: dict[tuple[int, int], step.SpineMark] = field(default_factory=dict)
    """The marks of the (step, generation) pairs with a due checkpoint."""
    trainer_fences: list[tuple[UUID, str]] = field(default_factory=list)
    """The owner and the position of each fence of the trainer."""
    fence_owners: dict[str, set[UUID]] = field(default_factory=dict)
    """The owners of each role of the daemon."""
    drawn_last: dict[str, int] = field(default_factory=dict)
    """The version of the last tokens drawn by each worker, by the worker's source."""
    workers: set[UUID] = field(default_factory=set)
    """The workers announced in the log."""
    leased_to: set[UUID] = field(default_factory=set)
    """The workers with leases."""
    produced: int = 0
    """Number of experiences in the log."""
    members: int = 0
    """Number of experiences in closed groups."""
    planned: int = 0
    """Number of members planned at least once."""
    retired_after_use: int = 0
    """Members planned and retired before their last use."""
    waiting: int = 0
    """Number of members neither planned nor retired."""
    left: int = 0
    """Number of members neither retired nor planned for the last time."""
    a_left: str = ""
    """Position of one of the members counted in `left`, for a finding."""
    late: int = 0
    """Number of experiences outside of any closed group, though their group is not open."""
    retired: Counter[str] = field(default_factory=Counter)
    """Number of retired experiences, by reason."""
    life: set[UUID] = field(default_factory=set)
    """The ids of its life events already applied: a repetition must not change its state again."""

    @property
    def ended(self) -> bool:
        """True once the experiment is completed, failed, cancelled or rejected."""
        return self.state in ("completed", "failed", "cancelled", "rejected")

    def lost_some(self, stream: str) -> bool:
        """True if a person accepted the loss of records of this stream."""
        return any(lost.stream == stream for lost in self.losses_accepted)

    @property
    def shared(self) -> int:
        """The last step inherited from the parent's history; 0 for an experiment without a parent."""
        return self.forked.at_step if self.forked else 0

    def checksum(self, facts: Facts, number: int, generation: int) -> int | None:
        """Returns the checksum of step `number`'s weights in a generation, as `hashed`; None for unknown weights."""
        known_checksum = self.checksums.get((number, generation))
        if known_checksum is not None or not 0 < number <= self.last_step:
            return known_checksum
        page, at = facts.steps.row(self.index, number)
        _, _, checksum, first, executed, _ = STEP.unpack_from(page, at)
        return int(checksum) if executed and first == generation else None

    def checksums_of(self, facts: Facts, number: int) -> set[int]:
        """Returns the checksums of every execution of step `number`, as `hashed`."""
        step_checksums = {checksum for (step, _), checksum in self.checksums.items() if step == number}
        if 0 < number <= self.last_step:
            page, at = facts.steps.row(self.index, number)
            _, _, checksum, _, executed, _ = STEP.unpack_from(page, at)
            step_checksums |= {int(checksum)} if executed else set()
        return step_checksums

    def plan_place(self, facts: Facts, number: int) -> int | None:
        """Returns the spine offset of the plan of step `number` that was not abandoned; None without one."""
        if not 0 < number <= self.last_step:
            return None
        page, at = facts.steps.row(self.index, number)
        plan_offset = STEP.unpack_from(page, at)[1]
        return int(plan_offset) - 1 if plan_offset else None

    @property
    def next_planned(self) -> int:
        """The step of the next plan: planners skip none."""
        return 1 + max(self.last_planned, self.shared, *self.stages.values())

    def owners_of(self, until: int) -> Iterator[tuple[Evidence, int]]:
        """Yields (evidence, last step) of the experiments that trained the steps up to `until`, oldest
        ancestor first.
        """
        # An ancestor's steps after its child's fork are no part of this history.
        if self.parent is not None and self.shared:
            yield from self.parent.owners_of(min(until, self.shared))
        yield self, until

    @property
    def spine(self) -> topics.Partition:
        """The partition of the experiment's plans and steps."""
        return topics.partition_of(topics.EXPERIMENTS, self.id)


def hashed(checksum: str) -> int:
    """Reduces a checksum of weights to 64 bits, to fit into a row."""
    return int(xxhash.xxh3_64_intdigest(checksum.encode()))
