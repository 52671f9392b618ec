"""Evaluations decide in the order of their versions, whoever was faster: the best checkpoint, an end, a pause."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.worlds.desk import BATCH, Desk, stage_of

from rftd.streams.events.experiment import (
    CheckpointChosen,
    ExperimentForked,
    ExperimentPaused,
    ExperimentResumed,
    ExperimentWarned,
    StageStopped,
)
from rftd.streams.events.registry import Event
from rftd.streams.events.step import EvalCompleted
from rftd.streams.folds.scoreboard import Scoreboard
from rftd.streams.spec.schedule import checkpoint_due, rate_steps
from rftd.streams.spec.spec import TasksetSpec, TrainerSpec
from rftd.streams.spec.stage_parts import BestSpec, ByEvaluation, EarlyStopSpec, FigureSpec, RuleSpec
from rftd.workers.control.controller import Controller
from rftd.workers.control.planner import Planner
from rftd.workers.control.planner_holds import EvalDecides

SCORE = FigureSpec(taskset="held")
BEST = ByEvaluation(best=BestSpec(figure=SCORE, keep=2))
PATIENT = ByEvaluation(early_stop=EarlyStopSpec(figure=SCORE, patience=2, min_delta=0.1))
VALUES = (0.2, 0.5, 0.4, 0.55, 0.54, 0.5)


def desk_of(decisions: ByEvaluation) -> Desk:
    """A stage of twenty steps that is evaluated before the first and after every second."""
    stage = stage_of(
        total_steps=20,
        trainer=TrainerSpec(engine="fake", by_evaluation=decisions),
        evals=(TasksetSpec(name="held", path="none", rows=4),),
        eval_interval=2,
    )
    return Desk(stage)


def evaluation(version: int, score: float, **metrics: float) -> EvalCompleted:
    return EvalCompleted(
        eval=UUID(int=version + 1),
        stage=0,
        taskset="held",
        version=version,
        generation=0,
        rows=4,
        score=score,
        metrics=metrics,
    )


def obeyed(desk: Desk) -> list[Event]:
    """All that the controller decides now, written and folded."""
    controller = Controller(desk.state)
    events: list[Event] = []
    while decided := desk.obey(controller.decide().events):
        events += decided
    return events


def decided(desk: Desk, scores: dict[int, float]) -> list[Event]:
    """All that the controller decides, which looks after each evaluation."""
    events: list[Event] = []
    for version, score in scores.items():
        desk.put(evaluation(version, score))
        events += obeyed(desk)
    return events


def test_the_best_versions_are_chosen_and_named_with_what_they_replace() -> None:
    desk = desk_of(BEST)
    events = decided(desk, dict(zip(range(0, 12, 2), VALUES, strict=True)))
    chosen = [event for event in events if isinstance(event, CheckpointChosen)]
    assert [(event.version, event.value, event.before, event.kept) for event in chosen] == [
        (2, 0.5, None, (2,)),
        (2, 0.5, 0.5, (2, 4)),
        (6, 0.55, 0.5, (6, 2)),
        (6, 0.55, 0.55, (6, 8)),
    ]
    assert {event.base for event in chosen} == {0.2}, "the weights with which the stage began"
    spine = desk.state.spine
    stage = spine.stage_spec()
    assert [version for version in range(1, 16) if spine.scores.keeps(version, stage)] == [6, 8, 12, 14]
    assert [step for step in range(1, 8) if checkpoint_due(stage, step)] == [2, 4, 6], "each version that is evaluated"
    for event in chosen:
        desk.put(event)
    assert obeyed(desk) == [], "one that comes again changes nothing"


@pytest.mark.parametrize(("forked_in", "at_step", "first_version"), [(0, 0, 0), (0, 6, 6)], ids=["base", "stage end"])
def test_a_fork_whose_base_was_evaluated_decides_by_its_own_evaluations(
    forked_in: int, at_step: int, first_version: int
) -> None:
    """The parent has answered with the weights of the fork: no evaluation of them will come here."""
    stage = desk_of(BEST).state.spine.stage_spec()
    forked = ExperimentForked(
        parent=UUID(int=7),
        at_step=at_step,
        checksum="c",
        stage=forked_in,
        first_versions=(0,),
        decided_at_ns=1,
        evaluated=(0,),
    )
    scores = Scoreboard()
    scores.begin(1 if at_step else 0, first_version, stage, forked)
    for version in (first_version + 2, first_version + 4):
        event = msgspec.structs.replace(evaluation(version, 0.1 * version), stage=scores.stage)
        scores.evaluated(event, stage)
    assert [choice.version for choice in scores.unwritten] == [first_version + 2, first_version + 4]
    assert scores.base is None


@pytest.mark.parametrize("order", list(permutations((0, 2, 4, 6)))[::5])
def test_the_order_in_which_evaluations_end_changes_no_decision(order: tuple[int, ...]) -> None:
    scores = {0: 0.5, 2: 0.4, 4: 0.6, 6: 0.3}
    decisions = msgspec.structs.replace(
        BEST,
        early_stop=EarlyStopSpec(figure=SCORE, patience=2),
        rules=(RuleSpec(figure=SCORE, kind="falls_by", threshold=0.4, then="stop"),),
    )
    sides = [desk_of(decisions), desk_of(decisions)]
    events = [decided(sides[0], scores), decided(sides[1], {version: scores[version] for version in order})]
    assert events[0] == events[1]
    assert [type(event) for event in events[0]] == [CheckpointChosen, CheckpointChosen, StageStopped]
    one, other = (desk.state.spine.scores for desk in sides)
    assert msgspec.to_builtins(one) == msgspec.to_builtins(other)


def test_a_stage_stops_once_it_is_no_better_and_keeps_its_learning_rates() -> None:
    desk = desk_of(PATIENT)
    events = decided(desk, {0: 0.2, 2: 0.5, 4: 0.55, 6: 0.58})
    [stopped] = [event for event in events if isinstance(event, StageStopped)]
    assert (stopped.version, stopped.cause, stopped.value) == (6, "patience", 0.58)
    assert stopped.reason == "score of held is 0.58 at version 6: no better than 0.5 in 2 evaluations in a row"
    stage = desk.state.spine.stage_spec()
    assert (stage.total_steps, rate_steps(stage)) == (1, 20), "one more step than is planned"
    desk.put(stopped)
    assert desk.state.spine.stage_spec() == stage


def test_a_stop_does_not_take_back_what_is_planned() -> None:
    """Another daemon may have planned a batch before the stop reached the log."""
    desk = desk_of(PATIENT)
    desk.supply(2 * BATCH)
    stopped = StageStopped(
        stage=0, last_version=1, version=6, figure=SCORE.name, value=0.5, cause="patience", reason="r"
    )

    planner = Planner(desk.state)
    desk.obey(planner.decide(desk.positions, desk.state.spine.recorded_ns + 1).events)
    planned = desk.state.spine.planned
    assert planned > 1
    desk.put(stopped)
    assert desk.state.spine.last_version == planned


@pytest.mark.parametrize(
    ("spec", "scores", "version", "reason"),
    [
        (EarlyStopSpec(figure=SCORE, bound=0.5), (0.2, 0.4, 0.5), 4, "score of held is 0.5 at version 4, and 0.5 was"),
        (
            EarlyStopSpec(figure=SCORE, mode="min", bound=0.3),
            (0.5, 0.31, 0.3),
            4,
            "score of held is 0.3 at version 4, and 0.3 was to be reached",
        ),
        (EarlyStopSpec(figure=SCORE, mode="min", patience=1), (0.5, 0.4, 0.4), 4, "score of held is 0.4 at version 4"),
    ],
)
def test_a_bound_and_a_minimum(spec: EarlyStopSpec, scores: tuple[float, ...], version: int, reason: str) -> None:
    desk = desk_of(ByEvaluation(early_stop=spec))
    *before, last = scores
    assert decided(desk, dict(zip((0, 2), before, strict=True))) == []
    [stopped] = decided(desk, {4: last})
    assert isinstance(stopped, StageStopped)
    assert stopped.version == version
    assert stopped.reason.startswith(reason)


@pytest.mark.parametrize(
    ("rule", "scores", "applies"),
    [
        (RuleSpec(figure=SCORE, kind="falls_by", threshold=0.2), (0.5, 0.45, 0.4, 0.38, 0.3), (4, 8)),
        (RuleSpec(figure=SCORE, kind="rises_by", threshold=0.5), (0.2, 0.1, 0.16, 0.2, 0.24), (4, 8)),
        (RuleSpec(figure=SCORE, kind="below", threshold=0.3), (0.4, 0.2, 0.1, 0.4, 0.2), (2, 8)),
        (RuleSpec(figure=SCORE, kind="above", threshold=0.3), (0.3, 0.4, 0.5, 0.2, 0.31), (2, 8)),
        (RuleSpec(figure=SCORE, kind="falls_by", threshold=0.2), (-0.5, -0.55, -0.6, -0.61, -0.8), (4, 8)),
    ],
)
def test_a_rule_pauses_once_for_each_crossing(rule: RuleSpec, scores: tuple[float, ...], applies: Any) -> None:
    """Who resumes has seen it: the rule applies again only after its threshold was crossed back."""
    desk = desk_of(ByEvaluation(rules=(rule,)))
    paused = []
    for version, score in zip(range(0, 10, 2), scores, strict=True):
        for event in decided(desk, {version: score}):
            assert isinstance(event, ExperimentPaused)
            assert event.cause == "rule"
            assert "score of held" in event.reason and f"at version {version}" in event.reason
            paused.append(version)
            desk.put(ExperimentResumed())
    assert tuple(paused) == applies


def test_what_is_no_number_is_no_better_and_what_is_missing_is_told_once() -> None:
    figure = FigureSpec(taskset="held", figure="reward/right/mean")
    decisions = ByEvaluation(
        best=BestSpec(figure=figure),
        early_stop=EarlyStopSpec(figure=figure, patience=3),
        rules=(RuleSpec(figure=figure, kind="below", threshold=1.0),),
    )
    desk = desk_of(decisions)
    events: list[Event] = []
    for version in (0, 2, 4):
        metrics = {} if version == 2 else {"reward/right/mean": math.nan}
        desk.put(evaluation(version, 0.5, **metrics))
        events += obeyed(desk)
    warned, stopped = events
    assert isinstance(warned, ExperimentWarned)
    assert warned.text.startswith("eval/held/reward/right/mean: the evaluation has no such figure")
    assert isinstance(stopped, StageStopped)
    assert stopped.value is None
    assert (
        stopped.reason
        == "reward/right/mean of held is no number at version 4: no better than none in 3 evaluations in a row"
    )


def test_a_next_stage_begins_anew() -> None:
    stage = desk_of(PATIENT).state.spine.stage_spec()
    desk = Desk(stage, stage)
    decided(desk, {0: 0.9, 2: 0.8})
    desk.next_stage()
    scores = desk.state.spine.scores
    assert (scores.stage, scores.best, scores.behind, scores.through) == (1, None, 0, {"held": -1})


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_deterministic_run_plans_nothing_past_what_may_end_it(deterministic: bool) -> None:
    desk = desk_of(PATIENT)
    spine = desk.state.spine
    assert spine.spec is not None
    spine.spec = msgspec.structs.replace(spine.spec, deterministic=deterministic)
    desk.supply(4 * BATCH)
    desk.put(evaluation(0, 0.5))
    planner = Planner(desk.state)
    holds = []
    for _ in range(4):
        decided = planner.decide(desk.positions, spine.recorded_ns + 1)
        desk.obey(decided.events)
        holds.append(type(decided.hold).__name__)
        if spine.version < spine.planned:
            desk.execute()
    assert (spine.planned, holds[-1] == "EvalDecides") == ((2, True) if deterministic else (3, False))
    desk.put(evaluation(2, 0.5))
    desk.put(evaluation(4, 0.5))
    assert planner.decide(desk.positions, spine.recorded_ns + 1).hold == EvalDecides(spine.planned), "a stop is due"
    [stopped] = obeyed(desk)
    assert isinstance(stopped, StageStopped)
    assert spine.last_version == spine.planned + 1
