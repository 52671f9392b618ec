"""`rftd get` on waits, the pace, late weights, a lost signal, and rows that were no question of the model."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import pytest
from rich.console import Console

from rftd.daemon.cli.verbs.get import render
from rftd.daemon.cli.verbs.watch import brief
from rftd.daemon.http.views.budgets import BudgetRow
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.moment import Moment, Pace, moment_from, pace_of
from rftd.daemon.http.views.trackers import TrackerRow
from rftd.daemon.run.why.wait import Wait
from rftd.ops.clock import ManualClock
from rftd.ops.words import Level
from rftd.storage.queries.books import Books
from rftd.storage.queries.experiments import ExperimentDetail, ExperimentSummary, StageRow
from rftd.storage.queries.signal import SignalRow
from rftd.storage.queries.steps import EvalRow, StepEnd
from rftd.storage.queries.weights import OverdueRow, WeightRow

CLOCK = ManualClock()
NOW_NS = CLOCK.now_ns()


def page(*overdue: OverdueRow, windows: int) -> ExperimentPage:
    summary = ExperimentSummary(
        id="1",
        name="mine",
        project="p",
        state="running",
        reason=None,
        code=None,
        kept="here",
        kept_path=None,
        stage="rft",
        step=3,
        total_steps=9,
        generation=0,
        reward_mean=None,
        staleness_p95=None,
        submitted_ns=NOW_NS,
        started_ns=NOW_NS,
        state_ns=NOW_NS,
        labels={},
        priority=0,
        queue_position=None,
        parent=None,
        forked_step=None,
    )
    stage = StageRow(
        stage=0,
        name="rft",
        kind="both",
        algorithm="grpo",
        total_steps=9,
        batch_size=4,
        train_batch_size=16,
        first_version=0,
        last_version=9,
        started_ns=NOW_NS,
        completed_ns=None,
    )
    books = Books(
        produced=0,
        waiting=0,
        cooling=0,
        planned=0,
        retired={},
        retired_used={},
        balance=0,
        open=0,
        late=0,
        failed_rollouts=0,
        given_up={},
    )
    detail = ExperimentDetail(
        summary=summary,
        job_dir="/j",
        deterministic=False,
        seed=1,
        config={},
        stages=[stage],
        warnings=[],
        books=books,
        groups_closed=0,
        generations=1,
        parent_name=None,
    )
    return ExperimentPage(
        experiment=detail,
        reward_curve=[],
        evals=[],
        weights=[],
        checkpoints=[],
        workers=[],
        overdue=list(overdue),
        overdue_windows=windows,
        signal=None,
        waiting=None,
        memory=[],
        trackers=[],
        budgets=[],
    )


def shown(given: ExperimentPage, *notes: str) -> str:
    output = io.StringIO()
    Console(file=output, width=200).print(render(given, CLOCK, notes))
    return output.getvalue()


def moment_at(given: ExperimentPage, *waits: Wait, steps: Sequence[StepEnd] = ()) -> Moment:
    """The moment of a page with these waits and steps."""
    detail = given.experiment
    return moment_from(detail.summary, detail.stages, waits, steps=steps, clock=CLOCK, memory=given.memory)


def shown_at(given: ExperimentPage, *waits: Wait, steps: Sequence[StepEnd] = ()) -> str:
    return shown(msgspec.structs.replace(given, moment=moment_at(given, *waits, steps=steps)))


LATE = OverdueRow(
    stage=0, window=4, wanted=4, version=2, waited_s=60.2, reason="version 4 did not come", overdue_ns=NOW_NS
)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (page(LATE, windows=1), "overdue       window 4 of rft went on with version 2 0s ago: version 4 did not come"),
        (page(msgspec.structs.replace(LATE, version=-1), windows=1), "window 4 of rft went on waiting 0s ago"),
        (page(LATE, windows=12), "12 windows; the last: window 4 of rft"),
    ],
)
def test_overdue_weights_are_shown(given: ExperimentPage, says: str) -> None:
    assert says in shown(given)
    assert "overdue" not in shown(page(windows=0))


SIGNAL = SignalRow(
    cause="prompts_cut",
    reason="every prompt was cut; fix: raise model.max_prompt_tokens",
    since_step=4,
    since_ns=NOW_NS,
    step=7,
    tokens=1234,
    gradient_norm=0.5,
    equal_groups=0.25,
    prompts_cut=1.0,
    answers_cut=0.0,
    answers_empty=0.0,
)


def test_a_lost_signal_is_shown_with_the_shares_of_the_newest_step() -> None:
    given = msgspec.structs.replace(page(windows=0), signal=SIGNAL)
    found = shown(given)
    assert (
        "signal        lost at step 4: prompts_cut: every prompt was cut; fix: raise model.max_prompt_tokens" in found
    )
    assert "step 7: 25% of groups with equal rewards, 100% of prompts cut" in found
    assert "1,234 tokens trained, gradient 0.5" in found
    assert brief(given).endswith("signal lost at step 4: prompts_cut: " + str(SIGNAL.reason))
    well = msgspec.structs.replace(SIGNAL, cause=None, reason=None)
    assert "lost" not in shown(msgspec.structs.replace(given, signal=well))


def test_the_reason_of_a_lost_signal_is_told_once() -> None:
    reason = str(SIGNAL.reason)
    lost = Wait("signal", "lost", f"something to learn from, since step 4: {reason}", "you", "", Level.STUCK)
    other = Wait("planner", "paused", "a resume", "you", "", Level.WAITS)
    given = msgspec.structs.replace(page(windows=0), signal=SIGNAL)
    running = shown_at(given, lost, other)
    assert running.count(reason) == 1
    assert "signal        lost at step 4: prompts_cut (0s)" in running
    summary = msgspec.structs.replace(
        given.experiment.summary, state="paused", code="signal_lost", reason=f"5 batches taught nothing: {reason}"
    )
    detail = msgspec.structs.replace(given.experiment, summary=summary)
    paused = shown_at(msgspec.structs.replace(given, experiment=detail), lost, other)
    assert paused.count(reason) == 1
    assert "reason        signal_lost: 5 batches taught nothing" in paused
    assert "why           planner waits for a resume" in paused


def test_weights_of_an_experiment_that_has_ended_are_used_by_nobody() -> None:
    weights = WeightRow(
        version=3,
        generation=0,
        stage=0,
        method="checkpoint",
        path="/w",
        manifest="m",
        checksum="c",
        size_bytes=1024,
        published_ns=NOW_NS,
        counts=True,
        retired_reason=None,
        holders=1,
    )
    running = msgspec.structs.replace(page(windows=0), weights=[weights])
    assert "version 3 published 0s ago, 1.0 KiB, used by 1 worker" in shown(running)
    summary = msgspec.structs.replace(running.experiment.summary, state="completed")
    detail = msgspec.structs.replace(running.experiment, summary=summary)
    ended = shown(msgspec.structs.replace(running, experiment=detail))
    assert "version 3 published 0s ago, 1.0 KiB\n" in ended


def test_a_solved_task_is_no_lost_signal() -> None:
    reason = "every answer earns the full reward: 1; fix: stop the run or use harder tasks"
    signal = msgspec.structs.replace(SIGNAL, cause="solved", reason=reason, since_step=4, equal_groups=1.0)
    given = msgspec.structs.replace(page(windows=0), signal=signal)
    words = "since step 4: every answer earns the full reward: 1; stop the run or use harder tasks"
    found = shown(given)
    assert f"solved        {words}" in found
    assert "signal        step 7: 100% of groups with equal rewards" in found
    assert brief(given).endswith(f"  solved {words}")
    assert not {"lost", "fix"} & set(found.replace(":", " ").split())


def test_evaluation_names_unasked_rows_beside_its_score() -> None:
    row = EvalRow(
        id="1",
        stage=0,
        taskset="held",
        version=3,
        generation=0,
        rows=12,
        score=0.0,
        metrics={"prompts_cut_rows": 12.0, "failed_rows": 0.0},
        completed_ns=NOW_NS,
    )
    given = msgspec.structs.replace(page(windows=0), evals=[row])
    assert "  0.000  12 of 12 prompts were cut" in shown(given)
    assert "no answer" not in shown(given)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (TrackerRow(kind="jsonl", points=9, step=3, ended=False, error=""), "jsonl: 9 points up to step 3"),
        (TrackerRow(kind="jsonl", points=9, step=1, ended=False, error=""), "up to step 1, 2 steps behind"),
        (TrackerRow(kind="jsonl", points=9, step=3, ended=True, error=""), "up to step 3, all of it"),
        (TrackerRow(kind="wandb", points=0, step=0, ended=False, error="no key"), "3 steps behind; no key"),
    ],
)
def test_a_tracker_is_told_with_its_lag_and_its_error(row: TrackerRow, line: str) -> None:
    assert line in shown(msgspec.structs.replace(page(windows=0), trackers=[row]))


def test_an_evaluation_shows_the_parts_of_its_score() -> None:
    metrics = {"response_length/mean": 3.0, "reward/accuracy/mean": 0.25, "reward/format_score/mean": -0.1}
    row = EvalRow(
        id="1", stage=0, taskset="held", version=3, generation=0, rows=12, score=0.15, metrics=metrics, completed_ns=1
    )
    page_shown = msgspec.structs.replace(page(windows=0), evals=[row])
    assert "  0.150 (accuracy 0.250, format_score -0.100)" in shown(page_shown)


def step(number: int, at_s: float) -> StepEnd:
    """A step that ended so many seconds before now."""
    return StepEnd(step=number, stage=0, tokens=100, completed_ns=NOW_NS + int(at_s * 1e9))


def test_the_pace_is_that_of_the_steps_since_the_experiment_runs() -> None:
    steps = [step(1, -100.0), step(2, -10.0), step(3, -6.0), step(4, -2.0)]
    expected = Pace(step_s=4.0, tokens_per_s=25.0, last_ns=NOW_NS - 2 * 10**9)
    assert pace_of(steps, since_ns=NOW_NS - 20 * 10**9) == expected
    assert pace_of(steps[:1], since_ns=0) is None
    assert pace_of(steps, since_ns=NOW_NS) is None


def running_since(seconds: float) -> ExperimentPage:
    given = page(windows=0)
    summary = msgspec.structs.replace(given.experiment.summary, state_ns=NOW_NS - int(seconds * 1e9))
    return msgspec.structs.replace(given, experiment=msgspec.structs.replace(given.experiment, summary=summary))


def test_the_time_left_is_told_while_steps_come() -> None:
    given = running_since(10_000)
    steps = [step(2, -6.0), step(3, -2.0)]
    assert moment_at(given, steps=steps).left_s == 6 * 4.0 - 2.0
    assert "pace          4 s a step, 25 trained tokens/s, about 22 s left" in shown_at(given, steps=steps)
    set_back = [step(2, 7196.0), step(3, 7200.0)]
    assert moment_at(given, steps=set_back).left_s == 6 * 4.0, "the clock was set back by two hours"
    silent = [step(2, -304.0), step(3, -300.0)]
    assert moment_at(given, steps=silent).left_s is None
    assert "the last step ended 5m ago" in shown_at(given, steps=silent)


def test_the_worst_wait_is_a_sentence_and_an_evaluation_is_told_with_its_rows() -> None:
    stuck = Wait("fleet", "no_gpu", "a GPU", "you", "free one", Level.STUCK)
    evaluation = Wait("evaluation", "scores", "weight version 4 on held: 3 of 12 rows are scored", "", "", Level.WORKS)
    found = shown_at(page(windows=0), stuck, evaluation)
    assert "why           fleet waits for a GPU; you: free one" in found
    assert "evals         under way: weight version 4 on held: 3 of 12 rows are scored" in found
    assert "why " not in shown_at(page(windows=0), evaluation)
    assert "no daemon answers" in shown(page(windows=0), "no daemon answers at http://x").splitlines()[1]


def test_a_wait_that_clients_end_is_told_as_theirs() -> None:
    """A served experiment waits for feedback; its planner, for batches that somebody else has to make possible."""
    planner = Wait("planner", "experiences", "experiences for step 1", "dispatcher", "groups close", Level.WAITS)
    dispatcher = Wait("dispatcher", "feedback", "more conversations", "clients", "they commit them", Level.WAITS)
    trainer = Wait("trainer", "wait_batch", "the plan of its next step", "planner", "batch.planned", Level.WAITS)
    found = shown_at(page(windows=0), planner, trainer, dispatcher)
    assert "why           dispatcher waits for more conversations; clients: they commit them" in found
    busy = msgspec.structs.replace(dispatcher, on_whom="trainer")
    found = shown_at(page(windows=0), planner, trainer, busy)
    assert "why           planner waits for experiences for step 1; dispatcher: groups close" in found, "a round"


@pytest.mark.parametrize(
    ("state", "begun", "said"),
    [
        ("running", True, "under way"),
        ("paused", True, "under way"),
        ("queued", False, "waits"),
        ("cancelled", True, "not finished"),
        ("failed", False, "never begun"),
    ],
)
def test_no_stage_of_an_ended_experiment_is_under_way(state: str, begun: bool, said: str) -> None:
    given = page(windows=0)
    detail = given.experiment
    detail = msgspec.structs.replace(
        detail,
        summary=msgspec.structs.replace(detail.summary, state=state),
        stages=[msgspec.structs.replace(detail.stages[0], started_ns=NOW_NS if begun else None)],
    )
    assert f"3/9 steps, {said}\n" in shown(msgspec.structs.replace(given, experiment=detail))


def test_budgets_are_told_with_the_time_at_which_they_pause_it() -> None:
    later_ns = NOW_NS + 36 * 3600 * 10**9
    budgets = [
        BudgetRow(field="hours", limit=48, spent=12, words="12 of 48 hours", pauses_ns=later_ns),
        BudgetRow(field="cost", limit=900, spent=90, words="90 of 900", pauses_ns=None),
        BudgetRow(field="unseen_days", limit=2, spent=0.5, words="0.5 of 2 days without a look", pauses_ns=later_ns),
    ]
    told = shown(msgspec.structs.replace(page(windows=0), budgets=budgets))
    assert "12 of 48 hours (25%), pauses in 1 d 12 h\n" in told
    assert "90 of 900 cost (10%)\n" in told
    assert "0.5 of 2 days without a look, pauses in 1 d 12 h unless somebody looks\n" in told
