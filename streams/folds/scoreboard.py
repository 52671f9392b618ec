"""`Scoreboard`: the evaluation figures of a stage, version by version, and the decisions following from them; a fold of
the spine.

Evaluations may be completed in any order, so each figure is folded only after the figures of all earlier versions:
decisions do not depend on the speed of workers. A decision stays pending until the controller has recorded it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from rftd.streams.events.experiment import (
    CheckpointChosen,
    ExperimentForked,
    ExperimentPaused,
    ExperimentWarned,
    StageStopped,
)
from rftd.streams.events.registry import Event
from rftd.streams.events.step import WORTHLESS, EvalCompleted
from rftd.streams.spec.schedule import eval_due, next_eval_step, shortened
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.streams.spec.stage_parts import MAX, STOP, ByEvaluation, EarlyStopSpec, FigureSpec, RuleSpec

BOUND: Final = "bound"
"""Cause: a figure crossed a configured bound."""
PATIENCE: Final = "patience"
"""Cause: several evaluations were no better than the best."""
RULE: Final = "rule"
"""Cause: a rule on a figure applied."""
_ROUNDED: Final = 1e-9
"""Tolerance for rounding: from 0.5 to 0.4 is a fall of 20 %, although 0.5 - 0.4 is computed as less than 0.1."""


class Ranked(msgspec.Struct, frozen=True):
    """A weight version with the figure by which checkpoints are ranked."""

    version: int
    """Weight version."""
    generation: int
    """Generation of the trainer."""
    value: float
    """Value of the figure by which checkpoints are ranked."""


class EvalVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of an evaluation to end or pause the stage."""

    cause: str
    """`bound`, `patience` or `rule`."""
    rule: int = -1
    """Index of the rule among the stage's rules, for cause `rule`."""
    version: int
    """Weight version of the evaluation."""
    value: float | None
    """The figure; None if it was not a finite number."""
    against: float | None
    """The figure's reference: the best, highest or lowest earlier one, or the bound; None without one."""


class RuleWatch(msgspec.Struct):
    """State of a rule on a figure, which applies once at each crossing of its threshold."""

    extreme: float | None = None
    """Highest or lowest figure since the stage began, or since the rule last applied; None before one."""
    armed: bool = True
    """False after the rule has applied, until its condition no longer holds."""


class Scoreboard(msgspec.Struct):
    """Evaluation figures of the current stage, with decisions not yet recorded by the controller."""

    stage: int = -1
    """Index of the current stage; -1 before the first."""
    first_version: int = 0
    """Weight version before the stage's first step."""
    through: dict[str, int] = {}
    """Step of the stage up to which evaluations are folded, by taskset; -1 before the first."""
    waiting: dict[int, dict[str, EvalCompleted]] = {}
    """Completed evaluations that wait for earlier ones, by step and taskset."""
    ranked: list[Ranked] = []
    """Versions whose checkpoints are kept as the best, best first."""
    base: float | None = None
    """Figure of the stage's first weights by which early stopping is decided; None before it."""
    best: float | None = None
    """Best figure seen by early stopping; None before one."""
    behind: int = 0
    """Number of evaluations since `best`."""
    watches: list[RuleWatch] = []
    """The states of the stage's rules, by index."""
    stop: EvalVerdict | None = None
    """The first decision to end the stage; None without one."""
    pause: EvalVerdict | None = None
    """A decision to pause the experiment, not recorded yet; None without one."""
    stopped: bool = False
    """True once the stop is recorded."""
    number: int = 0
    """Number of chosen checkpoints until now."""
    told: int = 0
    """Number of the last choice recorded by the controller."""
    unwritten: list[CheckpointChosen] = []
    """Choices not recorded yet."""
    chosen: dict[int, CheckpointChosen] = {}
    """Choice recorded last for each stage."""
    lacking: list[str] = []
    """Configured figures absent from an evaluation, until a warning is recorded."""
    lacked: set[str] = set()
    """Configured figures found absent until now."""

    def begin(self, stage: int, first_version: int, spec: StageSpec, forked: ExperimentForked | None) -> None:
        """Starts a stage; evaluations made by a fork's parent are ignored."""
        self.stage = stage
        self.first_version = first_version
        decisions = spec.trainer.by_evaluation
        # A fork at the last step of a stage goes on with the next one: its evaluations are of that stage.
        goes_on = forked is not None and forked.at_step >= first_version
        shared = forked.at_step - first_version if forked is not None and goes_on else 0
        evaluated = {spec.evals[number].name for number in forked.evaluated} if forked is not None and goes_on else ()
        tasksets = {figure.taskset for figure in decisions.figures}
        self.through = {name: shared if name in evaluated else shared - 1 for name in sorted(tasksets)}
        self.waiting = {}
        self.ranked = []
        self.base = self.best = self.stop = self.pause = None
        self.behind = 0
        self.watches = [RuleWatch() for _ in decisions.rules]
        self.stopped = False
        self.lacking = []
        self.lacked = set()

    def evaluated(self, event: EvalCompleted, spec: StageSpec) -> None:
        """Folds a completed evaluation, once, in the order of versions; earlier ones have to be folded first."""
        through = self.through.get(event.taskset)
        step = event.version - self.first_version
        if event.stage != self.stage or through is None or step <= through:
            return
        self.waiting.setdefault(step, {}).setdefault(event.taskset, event)
        while (following := self._next_step(event.taskset, spec)) in self.waiting:
            completed = self.waiting[following].pop(event.taskset, None)
            if completed is None:
                return
            if not self.waiting[following]:
                del self.waiting[following]
            self.through[event.taskset] = following
            self._fold_evaluation(completed, spec.trainer.by_evaluation)

    def unsettled(self, spec: StageSpec) -> int | None:
        """Returns the stage's first step whose evaluation is still to come and may decide something; None
        without one.
        """
        following = (self._next_step(taskset, spec) for taskset in self.through)
        return min((step for step in following if step is not None), default=None)

    def keeps(self, version: int, spec: StageSpec) -> bool:
        """True if the version's checkpoint is among the best of the stage, or may be once its evaluation is
        complete.
        """
        best = spec.trainer.by_evaluation.best
        if best is None:
            return False
        step = version - self.first_version
        pending = step > self.through.get(best.figure.taskset, step) and eval_due(spec, step)
        return pending or any(ranked.version == version for ranked in self.ranked)

    def written(self, event: CheckpointChosen | StageStopped, spec: ExperimentSpec, planned: int) -> ExperimentSpec:
        """Folds a decision recorded by the controller, once; returns the specification, with the stage shortened by a
        stop.
        """
        if isinstance(event, StageStopped):
            if event.stage != self.stage or self.stopped:
                return spec
            self.stop = None
            self.stopped = True
            return stopped(spec, event, first_version=self.first_version, planned=planned)
        if event.number > self.told:
            self.told = event.number
            self.chosen[event.stage] = event
        self.number = max(self.number, event.number)
        self.unwritten = [choice for choice in self.unwritten if choice.number > event.number]
        return spec

    def lived(self, event: Event) -> None:
        """Folds a pause or a warning recorded by the controller, which is then not due any more."""
        if isinstance(event, ExperimentPaused) and event.cause == RULE:
            self.pause = None
        elif isinstance(event, ExperimentWarned):
            self.lacking = [name for name in self.lacking if name not in event.text]

    def _next_step(self, taskset: str, spec: StageSpec) -> int | None:
        """Returns the step of the taskset's next evaluation; None if the taskset has no further evaluation."""
        return next_eval_step(spec, self.through[taskset])

    def _fold_evaluation(self, event: EvalCompleted, decisions: ByEvaluation) -> None:
        """Ranks the version, counts idle evaluations and applies rules, by the figures of one evaluation."""
        figure_values = {figure: self._value(figure, event) for figure in _figures_of(event, decisions)}
        best = decisions.best
        early_stop = decisions.early_stop
        if best is not None and best.figure in figure_values:
            self._rank_version(event, figure_values[best.figure], best.figure, best.mode, best.keep)
        if early_stop is not None and early_stop.figure in figure_values:
            self._count_idle(event, figure_values[early_stop.figure], early_stop)
        for number, rule in enumerate(decisions.rules):
            if rule.figure in figure_values:
                self._apply_rule(event, figure_values[rule.figure], number, rule)

    def _value(self, figure: FigureSpec, event: EvalCompleted) -> float | None:
        """Returns the value of a figure; None for a missing or non-finite value. A missing figure is noted once."""
        # Counts of worthless answers exist only above 0.
        default = 0.0 if figure.figure in WORTHLESS else None
        figure_value = event.score if figure.figure == "score" else event.metrics.get(figure.figure, default)
        if figure_value is None and figure.name not in self.lacked:
            self.lacked.add(figure.name)
            self.lacking.append(figure.name)
        return figure_value if figure_value is not None and math.isfinite(figure_value) else None

    def _rank_version(
        self, event: EvalCompleted, value: float | None, figure: FigureSpec, mode: str, keep: int
    ) -> None:
        """Ranks a version among the `keep` best; a changed ranking is a choice to be recorded."""
        if event.version == self.first_version:
            self.base = value  # its checkpoint, if there is one, belongs to the stage before
            return
        if value is None:
            return
        former = self.ranked
        ranked = [*former, Ranked(event.version, event.generation, value)]
        # The earlier of two equal versions: a longer training for nothing is no better.
        ranked.sort(key=lambda candidate: (-candidate.value if mode == MAX else candidate.value, candidate.version))
        self.ranked = ranked[:keep]
        if self.ranked == former:
            return
        best = self.ranked[0]
        self.number += 1
        choice = CheckpointChosen(
            number=self.number,
            stage=self.stage,
            version=best.version,
            generation=best.generation,
            figure=figure.name,
            value=best.value,
            before=former[0].value if former else None,
            base=self.base,
            kept=tuple(ranked.version for ranked in self.ranked),
        )
        self.unwritten.append(choice)

    def _count_idle(self, event: EvalCompleted, value: float | None, early_stop: EarlyStopSpec) -> None:
        """Counts consecutive evaluations no better than the best one; a value that is not a number is no better."""
        bound = early_stop.bound
        if value is not None and bound is not None and not _is_better(bound, value, early_stop.mode):
            self._set_stop(EvalVerdict(cause=BOUND, version=event.version, value=value, against=bound))
        margin = early_stop.min_delta
        if value is not None and (self.best is None or _is_better(value, self.best, early_stop.mode, margin)):
            self.best = value
            self.behind = 0
            return
        self.behind += 1
        if early_stop.patience and self.behind >= early_stop.patience:
            self._set_stop(EvalVerdict(cause=PATIENCE, version=event.version, value=value, against=self.best))

    def _apply_rule(self, event: EvalCompleted, value: float | None, number: int, rule: RuleSpec) -> None:
        """Applies a rule to a value: once at a crossing of its threshold, and again only after a crossing back."""
        if value is None:
            return
        watch = self.watches[number]
        against = _reference(rule, watch)
        crossed = against is not None and _is_crossed(rule, value, against)
        if rule.kind in ("falls_by", "rises_by"):
            higher = watch.extreme is None or (value > watch.extreme) == (rule.kind == "falls_by")
            # After an application, changes are measured from the present value: a resuming person has seen the fall.
            watch.extreme = value if higher or crossed else watch.extreme
        if crossed and watch.armed:
            verdict = EvalVerdict(cause=RULE, rule=number, version=event.version, value=value, against=against)
            if rule.then == STOP:
                self._set_stop(verdict)
            else:
                self.pause = self.pause or verdict
        watch.armed = not crossed

    def _set_stop(self, verdict: EvalVerdict) -> None:
        """Sets the stop; the first of several counts."""
        if not self.stopped:
            self.stop = self.stop or verdict


def stopped(spec: ExperimentSpec, event: StageStopped, *, first_version: int, planned: int) -> ExperimentSpec:
    """Returns the specification with the stage shortened, but not below its planned steps."""
    if not 0 <= event.stage < len(spec.stages):
        return spec
    stages = list(spec.stages)
    steps = max(event.last_version, planned) - first_version
    stages[event.stage] = shortened(stages[event.stage], steps)
    return msgspec.structs.replace(spec, stages=tuple(stages))


def _figures_of(event: EvalCompleted, decisions: ByEvaluation) -> Iterator[FigureSpec]:
    """Yields the configured figures of the evaluated taskset."""
    return (figure for figure in decisions.figures if figure.taskset == event.taskset)


def _is_better(value: float, than: float, mode: str, by: float = 0.0) -> bool:
    """True if `value` is better than `than` by more than `by`."""
    return value > than + by if mode == MAX else value < than - by


def _reference(rule: RuleSpec, watch: RuleWatch) -> float | None:
    """Returns the reference of a rule: its extreme so far, or its threshold."""
    return watch.extreme if rule.kind in ("falls_by", "rises_by") else rule.threshold


def _is_crossed(rule: RuleSpec, value: float, against: float) -> bool:
    """True if a value meets the rule's condition against its reference."""
    share = rule.threshold * abs(against) * (1 - _ROUNDED)
    match rule.kind:
        case "falls_by":
            return against - value >= share and value < against
        case "rises_by":
            return value - against >= share and value > against
        case "below":
            return value < against
        case _:
            return value > against
