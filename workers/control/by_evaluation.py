"""Decisions by evaluations, as events with reasons: the best checkpoint, the end of a stage, a pause. Pure.

The fold computes the verdicts (`streams/folds/scoreboard.py`).
"""

from __future__ import annotations

from typing import Final

from rftd.streams.events.experiment import CheckpointChosen, ExperimentWarned, StageStopped
from rftd.streams.folds.scoreboard import BOUND, RULE, EvalVerdict
from rftd.streams.folds.spine import Spine
from rftd.streams.spec.stage_parts import STOP, EarlyStopSpec, FigureSpec, RuleSpec
from rftd.workers.control.hold import Obstacle

_MOVES: Final = {"falls_by": "fell", "rises_by": "rose"}
"""Verb of a rule's message, by the rule's condition."""


def decided_by_evaluation(spine: Spine) -> list[CheckpointChosen | StageStopped | ExperimentWarned]:
    """Returns the events due after evaluations and not yet in the log: chosen checkpoints, the stop of the stage,
    warnings.
    """
    due: list[CheckpointChosen | StageStopped | ExperimentWarned] = [*spine.scores.unwritten]
    if spine.stage < 0 or spine.stage_completed:
        return due
    due += [_missing_figure(figure) for figure in spine.scores.lacking]
    if spine.scores.stop is not None and stop_is_due(spine):
        # One step more than planned: the trainer keeps the weights of a last step only if it knows that step to be the
        # last.
        due.append(_stopped(spine, spine.scores.stop, _next_version(spine)))
    return due


def demanded_pause(spine: Spine) -> Obstacle | None:
    """Returns the pause required by a rule of the experiment file on evaluation figures; None if no rule
    requires one.
    """
    verdict = spine.scores.pause
    if verdict is None or spine.stage < 0 or spine.stage_completed:
        return None
    return Obstacle(
        cause=RULE,
        reason=_reason(spine, verdict),
        fix="look at its answers (rftd evals NAME --worst); continue unchanged: rftd resume; or from an earlier step: "
        "rftd fork",
    )


def last_plannable_step(spine: Spine) -> int:
    """Returns the last step (a weight version) for which the planner may plan a batch now.

    This is the last planned step if an evaluation ends the stage, and otherwise the stage's last step. A deterministic
    run with an early stop plans no step beyond the oldest evaluation that may still end the stage.
    """
    if stop_is_due(spine):
        return spine.planned
    stage = spine.stage_spec()
    decisions = stage.trainer.by_evaluation
    ends = decisions.early_stop is not None or any(rule.then == STOP for rule in decisions.rules)
    if ends and spine.spec is not None and spine.spec.deterministic:
        unsettled = spine.scores.unsettled(stage)
        return spine.last_version if unsettled is None else spine.first_version + unsettled
    return spine.last_version


def stop_is_due(spine: Spine) -> bool:
    """True if an evaluation has decided to end the stage, and the event stage.stopped, shortening the stage, is not yet
    in the log.
    """
    return spine.scores.stop is not None and _next_version(spine) < spine.last_version


def _next_version(spine: Spine) -> int:
    """Returns the step (a weight version) of the next batch to be planned."""
    return max(spine.planned, spine.first_version) + 1


def _stopped(spine: Spine, verdict: EvalVerdict, last_version: int) -> StageStopped:
    """Returns the event that ends the stage at `last_version`, with figure, score and reason."""
    return StageStopped(
        stage=spine.stage,
        last_version=last_version,
        version=verdict.version,
        figure=_spec_of(spine, verdict).figure.name,
        value=verdict.value,
        cause=verdict.cause,
        reason=_reason(spine, verdict),
    )


def _spec_of(spine: Spine, verdict: EvalVerdict) -> EarlyStopSpec | RuleSpec:
    """Returns the early-stop setting or the rule that caused a verdict."""
    decisions = spine.stage_spec().trainer.by_evaluation
    if verdict.cause == RULE:
        return decisions.rules[verdict.rule]
    assert decisions.early_stop is not None
    return decisions.early_stop


def _reason(spine: Spine, verdict: EvalVerdict) -> str:
    """Returns the reason of a verdict as text."""
    spec = _spec_of(spine, verdict)
    name = _figure_text(spec.figure)
    at = f"at version {verdict.version}"
    score = "no number" if verdict.value is None else f"{verdict.value:.4g}"
    reference = "none" if verdict.against is None else f"{verdict.against:.4g}"
    if isinstance(spec, RuleSpec):
        if spec.kind in _MOVES:
            return f"{name} {_MOVES[spec.kind]} from {reference} to {score} {at}, by {spec.threshold:.0%} or more"
        return f"{name} is {score} {at}, {spec.kind} {reference}"
    if verdict.cause == BOUND:
        return f"{name} is {score} {at}, and {reference} was to be reached"
    times = "evaluation" if spec.patience == 1 else "evaluations in a row"
    return f"{name} is {score} {at}: no better than {reference} in {spec.patience} {times}"


def _missing_figure(figure: str) -> ExperimentWarned:
    """Returns the warning about a figure that no evaluation has."""
    command = "rftd evals NAME lists its figures"
    return ExperimentWarned(
        text=f"{figure}: the evaluation has no such figure ({command}), so nothing is decided by it"
    )


def _figure_text(figure: FigureSpec) -> str:
    """Returns a figure and its taskset as text, such as "accuracy of math"."""
    return f"{figure.figure} of {figure.taskset}"
