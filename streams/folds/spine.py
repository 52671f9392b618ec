"""The spine: an experiment's life, stages, plans and steps, in the order of a single partition."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from rftd.streams.events import batch, experiment, step, task, weights
from rftd.streams.events.experiment import CheckpointChosen, StageStopped
from rftd.streams.events.registry import Event
from rftd.streams.folds.ranges import PlannedBatches, Recent, Versions, trim
from rftd.streams.folds.scoreboard import Scoreboard
from rftd.streams.folds.signal import Signal
from rftd.streams.folds.spending import Spending
from rftd.streams.folds.task_queue import TaskQueues
from rftd.streams.log.envelope import Decoded
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.streams.spec.split_submission import LateHalf, halves_of, joined


class Status(StrEnum):
    """State of an experiment, from `submitted` to one of four final states."""

    SUBMITTED = "submitted"
    """Submitted, and not accepted or rejected yet."""
    QUEUED = "queued"
    """Accepted, waiting for a slot."""
    RUNNING = "running"
    """Accepted and started: leases and plans are made."""
    PAUSED = "paused"
    """Paused by a person or a cause."""
    COMPLETED = "completed"
    """Every stage is done."""
    FAILED = "failed"
    """Ended by an error."""
    CANCELLED = "cancelled"
    """Ended by a person."""
    REJECTED = "rejected"
    """Refused at the submission."""

    @property
    def ended(self) -> bool:
        """True for the final states: completed, failed, cancelled and rejected."""
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REJECTED)


class Kept(StrEnum):
    """Where an experiment's files are: in its folder, in an archive, or removed."""

    HERE = "here"
    """In the experiment's folder."""
    ARCHIVED = "archived"
    """In an archive."""
    REMOVED = "removed"
    """Deleted for good; no event brings the files back."""


class Plan(NamedTuple):
    """A planned batch and the offset of its event on the spine."""

    event: batch.BatchPlanned
    """Event with the planned batch and its step."""
    offset: int
    """Offset of the plan on the spine."""


class Spine(msgspec.Struct):
    """The fold of one experiment's spine: life, stages, plans, steps, evaluations and spending."""

    status: Status | None = None
    """State of the experiment; None before its submission is read."""
    status_ns: int = 0
    """Time of the last change of the status or of the pause's cause; for display."""
    code: str = ""
    """Error code of a failed or rejected experiment; empty otherwise."""
    reason: str = ""
    """Reason of the status, in words."""
    cause: str = ""
    """Cause of an automatic pause, as in experiment.paused; empty otherwise."""
    released: bool = False
    """True if the workers were released during a pause that only a person can end."""
    pauses: int = 0
    """Number of automatic pauses since the last new step."""
    priority: int = 0
    """Priority in the queue; the highest starts first."""
    spec: ExperimentSpec | None = None
    """Specification as submitted, or joined from both submitted halves; None before its submission is read."""
    submitted_by: str = ""
    """The name of the submitting token."""
    submitted_as: str = ""
    """Role of the submitting token; the submitter of the second half does not change it."""
    moves: tuple[tuple[experiment.FolderMove, ...], ...] = ()
    """Folders moved by each import of the experiment, oldest import first; `spec.config` has the original ones."""
    late_half: LateHalf | None = None
    """Half submitted after an import, so that only later imports moved its paths in `spec.config`; None without one."""
    grants: tuple[experiment.Grant, ...] = ()
    """Names in the specification that the daemon's allow-lists permitted at acceptance."""
    tokenizers: tuple[str, ...] = ()
    """The sha256 of the copy of each stage's tokenizer.json; see experiment.accepted."""
    halves: frozenset[str] = frozenset()
    """Halves submitted: `explore`, `train`; empty for a complete experiment."""
    start: tuple[experiment.HeadRef, ...] = ()
    """Heads of the log at the submission, below which nothing belongs to the experiment."""
    forked: experiment.ExperimentForked | None = None
    """The history shared with a parent; None unless the experiment is a fork."""
    kept: Kept = Kept.HERE
    """Where the experiment's files are."""
    archive: experiment.ExperimentArchived | None = None
    """Present or last archive of the files; None if never archived."""
    payloads_dropped: bool = False
    """True if every token array of the experiment was dropped from the log."""
    payloads_dropped_through: int = 0
    """Last step whose experiences have lost their token arrays, in the log and in any archive."""
    stage: int = -1
    """Index of the current stage; -1 before the first."""
    first_version: int = 0
    """Weight version at the beginning of the current stage."""
    first_versions: dict[int, int] = {}
    """Weight version at the beginning of each stage, by index."""
    stage_started_ns: int = 0
    """Time of the current stage's start, Unix time in nanoseconds; 0 before the first stage."""
    stage_completed: bool = False
    """True once the current stage is completed."""
    planned: int = 0
    """Last step with a plan."""
    plan_offsets: dict[int, int] = {}
    """Offsets of the newest steps' plans; older ones have to be searched in the log."""
    plans: dict[int, Plan] = {}
    """Plans not trained by the present generation, by step."""
    abandoned: dict[int, int] = {}
    """Number of abandoned batches, by step."""
    decided_at_ns: int = 0
    """Latest clock reading recorded by a decision."""
    generation: int = -1
    """The trainer's generation; -1 before the first one."""
    version: int = -1
    """Weight version of the trainer: steps trained in the history of the present generation."""
    furthest: int = 0
    """Highest step trained by any generation."""
    environment: dict[str, str] = {}
    """The environment of the newest generation's trainer, as reported by it."""
    checksums: dict[tuple[int, int], str] = {}
    """The checksums of the newest weights, by executed (version, generation); see `made`."""
    begun: dict[tuple[int, int], str] = {}
    """Checksums of a fork's first weights, by (version, generation)."""
    executed: Versions = msgspec.field(default_factory=Versions)
    """Every (version, generation) trained."""
    mark: step.SpineMark | None = None
    """Digest of the spine recorded in the newest step; None before one."""
    evaluated: set[UUID] = set()
    """Ids of completed evaluations."""
    request: weights.WeightsRequested | None = None
    """Newest request of explorers for weights; None before one."""
    overdue: dict[tuple[int, int], int] = {}
    """Version used after a window waited too long for its weights, by (stage, window); -1 for none."""
    queues: TaskQueues = msgspec.field(default_factory=TaskQueues)
    """Task queues of the stages."""
    _queued: Recent = msgspec.field(default_factory=Recent)
    """Ids of the newest folded events of task queues, so that a repeated one is ignored."""
    batches: PlannedBatches = msgspec.field(default_factory=PlannedBatches)
    """Steps with a plan that was not abandoned, by which a plan of any step but the next is ignored."""
    signal: Signal = msgspec.field(default_factory=Signal)
    """The learning signal."""
    scores: Scoreboard = msgspec.field(default_factory=Scoreboard)
    """Evaluation figures, and the decisions following from them."""
    spending: Spending = msgspec.field(default_factory=Spending)
    """Use of the budgets."""
    _lived: set[UUID] = set()
    """Ids of folded life events, so that a repeated one is ignored."""

    def apply(self, decoded: Decoded) -> None:
        """Folds one event of the spine; a repeated or obsolete event changes nothing."""
        event = decoded.event
        self.spending.pass_time(event, decoded.head.time_ns)
        match event:
            # The guards fold the event; a repeated or obsolete event falls through to the case below.
            case batch.BatchPlanned() if self.batches.plan(event):
                self.planned = max(self.planned, event.step)
                self.signal.planned()
                self.plans[event.step] = Plan(event, decoded.offset)
                self.plan_offsets[event.step] = decoded.offset
                trim(self.plan_offsets)
                self.decided_at_ns = max(self.decided_at_ns, event.decided_at_ns)
            case batch.BatchAbandoned() if self.batches.abandon(event):
                self.plans.pop(event.step, None)
                self.plan_offsets.pop(event.step, None)
                self.abandoned[event.step] = self.abandoned.get(event.step, 0) + 1
                self.planned = self.batches.last
            case batch.BatchPlanned() | batch.BatchAbandoned():
                pass
            case batch.ExperienceRetired():
                self.decided_at_ns = max(self.decided_at_ns, event.decided_at_ns)
                if event.uninformative is not None and self.stage >= 0:
                    batch_size = max(1, self.stage_spec().experiences_per_step)
                    self.signal.retired(event, stage=self.stage, step=self.planned + 1, batch=batch_size)
            case CheckpointChosen() | StageStopped():
                self._fold_decision(event)
            case experiment.SignalLost() | experiment.SignalRegained():
                self.signal.declared(event)
            case step.StepCompleted():
                self._fold_step(event)
            case step.GenerationStarted():
                self._fold_generation(event)
            case step.EvalCompleted():
                self._fold_evaluation(event)
            case weights.WeightsRequested():
                if self.request is None or weights.order_of(event) > weights.order_of(self.request):
                    self.request = event
            case weights.WeightsOverdue():
                self.overdue.setdefault((event.stage, event.window), event.version)
            case task.TasksAdded() | task.TasksEnded():
                self._fold_queue(event, decoded)
            case _:
                # An experiment never submitted has no life.
                if self.spec is not None or isinstance(event, experiment.ExperimentSubmitted):
                    self._fold_life_once(decoded)

    @property
    def recorded_ns(self) -> int:
        """Latest clock reading recorded in the log, from which waits are counted."""
        return max(self.waits_since_ns, self.status_ns)

    @property
    def waits_since_ns(self) -> int:
        """Time since which the trainer may have waited for its next batch: the last decision, or the stage's start."""
        return max(self.decided_at_ns, self.stage_started_ns)

    def stage_spec(self) -> StageSpec:
        """Returns the specification of the current stage; only after its start."""
        assert self.spec is not None and self.stage >= 0
        return self.spec.stages[self.stage]

    @property
    def ended(self) -> bool:
        """True once the experiment is completed, failed, cancelled or rejected."""
        return self.status is not None and self.status.ended

    @property
    def last_version(self) -> int:
        """Last weight version of the current stage."""
        return self.first_version + self.stage_spec().total_steps

    @property
    def shared_steps(self) -> int:
        """Number of the current stage's steps trained by the parent; 0 unless the experiment is a fork."""
        return max(0, self.forked.at_step - self.first_version) if self.forked else 0

    @property
    def caught_up(self) -> bool:
        """True if the present generation has trained every step ever trained, so that planning may continue."""
        return self.generation >= 0 and self.version >= self.furthest

    def made(self, version: int, generation: int, checksum: str) -> bool:
        """True if a trained step, or the start of a fork, produced weights with this checksum.

        For steps long ago only versions and generations are known: each version of a generation has a single trainer,
        and the step is reported before the announcement, so the announcement of an executed version is genuine.
        """
        key = version, generation
        checksum_known = self.checksums.get(key) or self.begun.get(key)
        return checksum_known == checksum if checksum_known is not None else key in self.executed

    def holds(self, id: UUID) -> bool:
        """True if the life event with this id was folded."""
        return id in self._lived

    def _fold_generation(self, event: step.GenerationStarted) -> None:
        # A repeated or older generation must not set the version back.
        """Folds a new generation of the trainer, which resumed from the version in the event."""
        if event.generation <= self.generation:
            return
        self.generation = event.generation
        self.version = event.version
        self.environment = event.environment
        if event.checksum:
            self._set_first_checksum(event.version, event.generation, event.checksum)

    def _fold_step(self, event: step.StepCompleted) -> None:
        """Folds a trained step, once per generation."""
        if event.spine is not None and (self.mark is None or event.spine.end > self.mark.end):
            self.mark = event.spine
        # The first record counts; the mark above is taken from any, for it only states the part read.
        if (event.step, event.generation) in self.executed or event.batch in self.batches.abandoned:
            return
        self.batches.complete(event)
        self.executed.add((event.step, event.generation))
        self.checksums[event.step, event.generation] = event.checksum
        trim(self.checksums)
        # Progress: batches executed again by a new generation are no proof of the end of a pause's cause.
        if event.step > self.furthest:
            self.furthest = event.step
            self.pauses = 0
            last = self.stage >= 0 and event.step >= self.last_version
            max_idle_steps = self.stage_spec().trainer.max_idle_steps if self.stage >= 0 else 0
            self.signal.executed(event, last=last, max_idle_steps=max_idle_steps)
            if self.stage >= 0 and not self.stage_spec().experiences_per_step:
                self.spending.row_tokens += event.tokens
        if event.generation == self.generation:
            self.version = event.step
            self.plans.pop(event.step, None)

    def _set_first_checksum(self, version: int, generation: int, checksum: str) -> None:
        """Records the checksum of the weights with which a fork or a generation begins."""
        self.checksums[version, generation] = self.begun[version, generation] = checksum

    def _is_too_late(self, event: Event) -> bool:
        """True for an event without effect: nothing leaves an end, and nothing brings removed files back."""
        if isinstance(event, experiment.ExperimentArchived | experiment.ExperimentRestored):
            return self.kept is Kept.REMOVED
        return self.ended and isinstance(event, experiment.TURNS)

    def _fold_life_once(self, decoded: Decoded) -> None:
        """Folds a life event, unless it was folded before or comes too late."""
        if decoded.head.id in self._lived:
            return
        self._lived.add(decoded.head.id)
        if not self._is_too_late(decoded.event):
            self._apply_life(decoded)
            self.signal.lived(decoded.event)

    def _apply_life(self, decoded: Decoded) -> None:
        event = decoded.event
        former_state = (self.status, self.cause)
        match event:
            case experiment.ExperimentSubmitted():
                self._fold_submission(event)
            case experiment.ExperimentPrioritized():
                self.priority = event.priority
            case experiment.ExperimentForked() if self.spec is not None and event.fits(self.spec):
                self._fold_fork(event)
            case experiment.ExperimentAccepted():
                self.start = event.start
                self.grants = event.grants
                self.tokenizers = event.tokenizers
                self.status = Status.QUEUED
            case experiment.ExperimentArchived():
                self.kept, self.archive = Kept.ARCHIVED, event
            case experiment.ExperimentRestored():
                self.kept = Kept.HERE
                self.payloads_dropped = False
            case experiment.PayloadsDropped():
                self._fold_dropped_payloads(event)
            case experiment.ExperimentRemoved():
                self.kept = Kept.REMOVED
            case experiment.ExperimentRejected():
                self._set_end(Status.REJECTED, event.code, event.reason)
            case experiment.ExperimentStarted() | experiment.ExperimentResumed():
                self._end_pause(queued=isinstance(event, experiment.ExperimentResumed) and event.queued)
            case experiment.ExperimentReleased():
                self.released = self.status is Status.PAUSED
            case experiment.ExperimentPaused():
                self.status, self.cause = Status.PAUSED, event.cause
                self.reason = event.reason
                self.pauses += bool(event.cause)
            case experiment.ExperimentCancelled():
                self._set_end(Status.CANCELLED, "", event.reason)
            case experiment.ExperimentCompleted():
                self._set_end(Status.COMPLETED, "", "")
            case experiment.ExperimentFailed():
                self._set_end(Status.FAILED, event.code, event.reason)
            case experiment.StageStarted() if self.spec is not None and 0 <= event.stage < len(self.spec.stages):
                self._fold_stage_start(event, decoded.head.time_ns)
            case experiment.StageCompleted():
                self.stage_completed = True
            case _:
                pass
        self.scores.lived(event)
        self.spending.lived(event)
        self.spending.running = self.status is Status.RUNNING
        if (self.status, self.cause) != former_state:
            self.status_ns = decoded.head.time_ns

    def _fold_stage_start(self, event: experiment.StageStarted, time_ns: int) -> None:
        """Folds the start of a stage."""
        self.stage = event.stage
        self.first_version = self.first_versions[event.stage] = event.first_version
        self.batches.begin(event.first_version)
        self.stage_started_ns = time_ns
        self.stage_completed = False
        self.scores.begin(event.stage, event.first_version, self.stage_spec(), self.forked)

    def _fold_evaluation(self, event: step.EvalCompleted) -> None:
        """Folds a completed evaluation."""
        self.evaluated.add(event.eval)
        if self.stage >= 0:
            self.scores.evaluated(event, self.stage_spec())

    def _fold_decision(self, event: CheckpointChosen | StageStopped) -> None:
        """Folds a chosen checkpoint or an early stop."""
        if self.spec is not None:
            self.spec = self.scores.written(event, self.spec, self.planned)

    def _fold_queue(self, event: task.TasksAdded | task.TasksEnded, decoded: Decoded) -> None:
        """Folds added tasks or the end of a queue, once."""
        if self.spec is not None and self._queued.first(decoded.head.id):
            self.spec = self.queues.take(event, decoded.offset, self.spec, self.planned, self.first_versions)

    def _fold_submission(self, event: experiment.ExperimentSubmitted) -> None:
        """Folds a submission; the submission of the other half is joined to the first half."""
        spec = event.spec
        if self.spec is None:
            self.spec = spec
            self.submitted_by = event.by
            self.submitted_as = event.role
            self.moves = event.moves
            self.priority = spec.priority
            self.halves = halves_of(spec)
            self.status = Status.SUBMITTED
            return
        # Two daemons may accept the two halves at once; a half compatible with the first on the spine joins it.
        joined_spec = joined(self.spec, spec, trained=self.generation >= 0)
        if isinstance(joined_spec, ExperimentSpec):
            self.spec = joined_spec
            if event.moves != self.moves and not halves_of(spec) <= self.halves:
                self.late_half = LateHalf(config=spec.config, moves=event.moves)
            self.halves |= halves_of(spec)

    def _end_pause(self, *, queued: bool) -> None:
        """Ends the pause, with its cause and reason."""
        self.status = Status.QUEUED if queued else Status.RUNNING
        self.cause = self.reason = ""
        self.released = False

    def _fold_dropped_payloads(self, event: experiment.PayloadsDropped) -> None:
        """Records which payloads were dropped."""
        through_step = event.through_step
        if through_step == 0:
            self.payloads_dropped = True
            if self.kept is Kept.HERE and event.records:
                through_step = self.furthest  # for good: no archive will have them
        self.payloads_dropped_through = max(self.payloads_dropped_through, through_step)

    def _fold_fork(self, event: experiment.ExperimentForked) -> None:
        """Folds the shared history, as if stages, plans and steps had been read here.

        The stage of `at_step` has to be started here, unless the stage ends there.
        """
        assert self.spec is not None
        self.forked = event
        self.first_versions = dict(enumerate(event.first_versions))
        self.planned = self.furthest = event.at_step
        self.batches.begin(event.at_step)
        self.decided_at_ns = event.decided_at_ns
        # Generation -1: the parent's weights, of any of its generations.
        self._set_first_checksum(event.at_step, -1, event.checksum)
        ends = event.first_versions[event.stage] + self.spec.stages[event.stage].total_steps == event.at_step
        self.stage = event.stage if ends else event.stage - 1
        self.first_version = self.first_versions.get(self.stage, 0)
        self.stage_completed = self.stage >= 0

    def _set_end(self, status: Status, code: str, reason: str) -> None:
        """Sets a final status with its code and reason."""
        self.status, self.code, self.reason = status, code, reason
