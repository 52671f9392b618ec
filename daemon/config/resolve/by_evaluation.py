"""`with_decisions` adds decisions based on evaluations to a stage, and refuses figures unknown to every evaluation."""

from __future__ import annotations

import difflib
from typing import Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Notes, UnknownField, WrongValue
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.trainer import BestCheckpoint, EarlyStop, EvalRule
from rftd.streams.spec.schedule import eval_steps
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_parts import BestSpec, ByEvaluation, EarlyStopSpec, FigureSpec, RuleSpec

_BEST: Final[FieldPath] = ("trainer", "best_checkpoint")
"""Section of the best checkpoints."""
_STOP: Final[FieldPath] = ("trainer", "early_stop")
"""Section of the early stop."""
_RULES: Final[FieldPath] = ("trainer", "rules")
"""Section of the rules."""
_CONDITIONS: Final = ("falls_by", "rises_by", "below", "above")
"""Conditions of a rule, of which exactly one must be set."""
_ENDS: Final = 2
"""Number of evaluations in a stage with evaluations only at the beginning and the end."""
_SHARES: Final = ("accuracy", "pass@", "majority@")
"""Prefixes of figures between 0 and 1."""


def with_decisions(stage: StageSpec, experiment: Experiment, notes: Notes, *, inheritable: bool) -> StageSpec:
    """Returns the stage with its decisions based on evaluations.

    `inheritable` is True if the sections are global and may concern other stages only.
    """
    trainer = experiment.trainer
    sections = (trainer.best_checkpoint, trainer.early_stop, trainer.rules or None)
    if not any(sections):
        return stage
    paths = [path for path, section in zip((_BEST, _STOP, _RULES), sections, strict=True) if section]
    if stage.kind != "both":
        for path in paths:
            if inheritable:
                notes.warn(f"{show(path)} has no effect in stage {stage.name!r}, which makes no evaluations")
            else:
                notes.wrong(path, "needs evaluations, but this experiment has none", "leave it out")
        return stage
    if not stage.evals:
        for path in paths:
            problem = "needs evaluations, but there are no held-out tasks"
            notes.wrong(path, problem, "name some in buffer.explorer_input.eval_tasksets")
        return stage
    decisions = ByEvaluation(
        best=_best(trainer.best_checkpoint, stage, notes) if trainer.best_checkpoint else None,
        early_stop=_early_stop(trainer.early_stop, stage, notes) if trainer.early_stop else None,
        rules=tuple(
            spec
            for number, rule in enumerate(trainer.rules)
            if (spec := _rule(rule, (*_RULES, number), stage, notes)) is not None
        ),
    )
    stage = msgspec.structs.replace(stage, trainer=msgspec.structs.replace(stage.trainer, by_evaluation=decisions))
    _warn_of_few(stage, paths, notes)
    return stage


def _best(section: BestCheckpoint, stage: StageSpec, notes: Notes) -> BestSpec | None:
    """Returns the setting for the best checkpoints; None, with an issue, for an unknown figure."""
    figure = _figure(section.metric, (*_BEST, "metric"), stage, notes)
    return None if figure is None else BestSpec(figure=figure, mode=section.mode, keep=section.keep)


def _early_stop(section: EarlyStop, stage: StageSpec, notes: Notes) -> EarlyStopSpec | None:
    """Returns the setting for an early stop; None, with an issue, for an unknown figure."""
    if not section.patience and section.bound is None:
        notes.wrong(_STOP, "has neither patience nor bound", "write patience: 3, or a bound")
    figure = _figure(section.metric, (*_STOP, "metric"), stage, notes)
    if figure is None:
        return None
    if section.bound is not None:
        best = section.bound > 1 if section.mode == "max" else section.bound < 0
        if best and figure.figure.startswith(_SHARES):
            problem = f"is {section.bound:g}, which {section.metric} never reaches: it lies between 0 and 1"
            notes.wrong((*_STOP, "bound"), problem, "write a bound between 0 and 1", WrongValue)
    return EarlyStopSpec(
        figure=figure, mode=section.mode, patience=section.patience, min_delta=section.min_delta, bound=section.bound
    )


def _rule(rule: EvalRule, path: FieldPath, stage: StageSpec, notes: Notes) -> RuleSpec | None:
    """Returns a rule on an evaluation figure; None, with an issue, for an invalid one."""
    conditions = {name: threshold_set for name in _CONDITIONS if (threshold_set := getattr(rule, name)) is not None}
    figure = _figure(rule.metric, (*path, "metric"), stage, notes)
    if len(conditions) != 1:
        problem = f"has {len(conditions)} conditions: {', '.join(conditions)}" if conditions else "has no condition"
        notes.wrong(path, problem, f"write one of {', '.join(_CONDITIONS)}")
        return None
    [(kind, threshold)] = conditions.items()
    if figure is None:
        return None
    never = {"above": threshold >= 1, "below": threshold <= 0, "falls_by": threshold > 1}
    if figure.figure.startswith(_SHARES) and never.get(kind):
        problem = f"is {threshold:g}, which {rule.metric} never is: it is between 0 and 1"
        notes.wrong((*path, kind), problem, "write a threshold between 0 and 1", WrongValue)
    return RuleSpec(figure=figure, kind=kind, threshold=threshold, then=rule.then)


def _figure(metric: str, path: FieldPath, stage: StageSpec, notes: Notes) -> FigureSpec | None:
    """Returns the figure named by a metric, as in `rftd steps` and trackers; None, with an issue, if unknown."""
    names = [taskset.name for taskset in stage.evals]
    inner = metric.removeprefix("eval/")
    # The longest first: a taskset's name may contain a slash, or be a prefix of another name.
    named = next((name for name in sorted(names, key=len, reverse=True) if inner.startswith(f"{name}/")), None)
    if named is None and len(names) > 1:
        several = [f"eval/{name}/{figure}" for name in names for figure in ("score", "accuracy/mean")]
        near = difflib.get_close_matches(metric, several, 1)
        fix = f"did you mean {near[0]!r}?" if near else f"name the taskset, for example eval/{names[0]}/{inner}"
        notes.wrong(
            path, f"is {metric!r}, which is ambiguous: there are {len(names)} held-out tasksets", fix, WrongValue
        )
        return None
    taskset = stage.evals[0 if named is None else names.index(named)]
    figure = inner if named is None else inner.removeprefix(f"{named}/")
    figure = "accuracy/mean" if figure == "accuracy" else figure
    from rftd.streams.figures.eval_figures import figure_names, is_open_figure  # few files decide by evaluations

    known_figures = figure_names(taskset)
    if figure in known_figures or is_open_figure(figure):
        return FigureSpec(taskset=taskset.name, figure=figure)
    near = difflib.get_close_matches(figure, ("accuracy", *known_figures), 1)
    fix = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known_figures)}, reward/PART/mean"
    notes.wrong(path, f"is {metric!r}, which evaluations of {taskset.name!r} do not have", fix, UnknownField)
    return None


def _warn_of_few(stage: StageSpec, paths: list[FieldPath], notes: Notes) -> None:
    """Warns of a stage with too few evaluations for a decision, if the number of steps is known."""
    if not stage.total_steps:
        return
    number = len(list(eval_steps(stage)))
    times = "once" if number == 1 else f"{number} times"
    early_stop = stage.trainer.by_evaluation.early_stop
    if early_stop is not None and early_stop.patience >= number:
        notes.warn(
            f"{show((*_STOP, 'patience'))} is {early_stop.patience}, and the stage is evaluated {times}, so it never "
            "stops early; set explorer.eval_interval lower"
        )
    elif number <= _ENDS:
        notes.warn(f"{show(paths[0])}: the stage is evaluated {times} only; set explorer.eval_interval lower")
