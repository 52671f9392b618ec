"""`with_decisions` gives a stage what its evaluations decide, and refuses a figure that none of them will have."""

from __future__ import annotations

import difflib
from typing import Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Notes, UnknownField, WrongValue
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.trainer import BestCheckpoint, EarlyStop, EvalRule
from rftd.streams.figures.eval_figures import figure_names, is_open_figure
from rftd.streams.spec.by_evaluation import BestSpec, ByEvaluation, EarlyStopSpec, FigureSpec, RuleSpec
from rftd.streams.spec.schedule import eval_steps
from rftd.streams.spec.spec import StageSpec

_BEST: Final[FieldPath] = ("trainer", "best_checkpoint")
_STOP: Final[FieldPath] = ("trainer", "early_stop")
_RULES: Final[FieldPath] = ("trainer", "rules")
_CONDITIONS: Final = ("falls_by", "rises_by", "below", "above")
_ENDS: Final = 2
"""The evaluations of a stage that has none between its ends."""
_SHARES: Final = ("accuracy", "pass@", "majority@")
"""Beginnings of figures that lie between 0 and 1."""


def with_decisions(stage: StageSpec, experiment: Experiment, notes: Notes, *, of_several: bool) -> StageSpec:
    """The stage with the decisions of its evaluations; `of_several`: it may have inherited what is for other stages."""
    given = experiment.trainer
    sections = (given.best_checkpoint, given.early_stop, given.rules or None)
    if not any(sections):
        return stage
    paths = [path for path, section in zip((_BEST, _STOP, _RULES), sections, strict=True) if section]
    if stage.kind != "both":
        for path in paths:
            if of_several:
                notes.warn(f"{show(path)} has no effect in stage {stage.name!r}, which makes no evaluations")
            else:
                notes.wrong(path, "decides by evaluations, and this experiment makes none", "leave it out")
        return stage
    if not stage.evals:
        for path in paths:
            what = "decides by evaluations, and there are no held-out tasks"
            notes.wrong(path, what, "name some in buffer.explorer_input.eval_tasksets")
        return stage
    decisions = ByEvaluation(
        best=_best(given.best_checkpoint, stage, notes) if given.best_checkpoint else None,
        early_stop=_early_stop(given.early_stop, stage, notes) if given.early_stop else None,
        rules=tuple(
            spec
            for number, rule in enumerate(given.rules)
            if (spec := _rule(rule, (*_RULES, number), stage, notes)) is not None
        ),
    )
    stage = msgspec.structs.replace(stage, trainer=msgspec.structs.replace(stage.trainer, by_evaluation=decisions))
    _warn_of_few(stage, paths, notes)
    return stage


def _best(given: BestCheckpoint, stage: StageSpec, notes: Notes) -> BestSpec | None:
    figure = _figure(given.metric, (*_BEST, "metric"), stage, notes)
    return None if figure is None else BestSpec(figure=figure, mode=given.mode, keep=given.keep)


def _early_stop(given: EarlyStop, stage: StageSpec, notes: Notes) -> EarlyStopSpec | None:
    if not given.patience and given.bound is None:
        notes.wrong(_STOP, "says when to stop neither by patience nor by bound", "write patience: 3, or a bound")
    figure = _figure(given.metric, (*_STOP, "metric"), stage, notes)
    if figure is None:
        return None
    if given.bound is not None:
        best = given.bound > 1 if given.mode == "max" else given.bound < 0
        if best and figure.figure.startswith(_SHARES):
            what = f"is {given.bound:g}, which {given.metric} never reaches: it lies between 0 and 1"
            notes.wrong((*_STOP, "bound"), what, "write a bound between 0 and 1", WrongValue)
    return EarlyStopSpec(
        figure=figure, mode=given.mode, patience=given.patience, min_delta=given.min_delta, bound=given.bound
    )


def _rule(given: EvalRule, path: FieldPath, stage: StageSpec, notes: Notes) -> RuleSpec | None:
    conditions = {name: value for name in _CONDITIONS if (value := getattr(given, name)) is not None}
    figure = _figure(given.metric, (*path, "metric"), stage, notes)
    if len(conditions) != 1:
        what = f"has {len(conditions)} conditions: {', '.join(conditions)}" if conditions else "has no condition"
        notes.wrong(path, what, f"write one of {', '.join(_CONDITIONS)}")
        return None
    [(kind, threshold)] = conditions.items()
    if figure is None:
        return None
    never = {"above": threshold >= 1, "below": threshold <= 0, "falls_by": threshold > 1}
    if figure.figure.startswith(_SHARES) and never.get(kind):
        what = f"is {threshold:g}, which {given.metric} never is: it lies between 0 and 1"
        notes.wrong((*path, kind), what, "write a threshold between 0 and 1", WrongValue)
    return RuleSpec(figure=figure, kind=kind, threshold=threshold, then=given.then)


def _figure(metric: str, path: FieldPath, stage: StageSpec, notes: Notes) -> FigureSpec | None:
    """The figure that a metric names, as `rftd steps` and trackers do; None after saying what is wrong."""
    names = [taskset.name for taskset in stage.evals]
    inner = metric.removeprefix("eval/")
    # The longest first: a taskset's name may have a slash in it, or be the beginning of another one's.
    named = next((name for name in sorted(names, key=len, reverse=True) if inner.startswith(f"{name}/")), None)
    if named is None and len(names) > 1:
        several = [f"eval/{name}/{figure}" for name in names for figure in ("score", "accuracy/mean")]
        near = difflib.get_close_matches(metric, several, 1)
        fix = f"did you mean {near[0]!r}?" if near else f"name one of them, such as eval/{names[0]}/{inner}"
        notes.wrong(path, f"is {metric!r}, and there are {len(names)} held-out tasksets", fix, WrongValue)
        return None
    taskset = stage.evals[0 if named is None else names.index(named)]
    figure = inner if named is None else inner.removeprefix(f"{named}/")
    figure = "accuracy/mean" if figure == "accuracy" else figure
    known = figure_names(taskset)
    if figure in known or is_open_figure(figure):
        return FigureSpec(taskset=taskset.name, figure=figure)
    near = difflib.get_close_matches(figure, ("accuracy", *known), 1)
    fix = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}, reward/PART/mean"
    notes.wrong(path, f"is {metric!r}, and evaluations of {taskset.name!r} have no such figure", fix, UnknownField)
    return None


def _warn_of_few(stage: StageSpec, paths: list[FieldPath], notes: Notes) -> None:
    """Warns of a stage with too few evaluations for what they are to decide, where the number of its steps is known."""
    if not stage.total_steps:
        return
    number = len(list(eval_steps(stage)))
    times = "once" if number == 1 else f"{number} times"
    early_stop = stage.trainer.by_evaluation.early_stop
    if early_stop is not None and early_stop.patience >= number:
        notes.warn(
            f"{show((*_STOP, 'patience'))} is {early_stop.patience}, and the stage is evaluated {times}: it never "
            "stops for that; set explorer.eval_interval lower"
        )
    elif number <= _ENDS:
        notes.warn(f"{show(paths[0])}: the stage is evaluated {times} only; set explorer.eval_interval lower")
