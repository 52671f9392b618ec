"""What `rftd get` says of late weights, of a lost signal, and of rows that were no question of the model."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from rftd.daemon.verbs.get import brief, render
from rftd.daemon.views.experiments import ExperimentPage
from rftd.ops.clock import ManualClock
from rftd.storage.queries.books import Books
from rftd.storage.queries.experiments import ExperimentDetail, ExperimentSummary, StageRow
from rftd.storage.queries.signal import SignalRow
from rftd.storage.queries.steps import EvalRow
from rftd.storage.queries.weights import OverdueRow

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
    books = Books(produced=0, waiting=0, cooling=0, planned=0, retired={}, balance=0, open=0, late=0, failed_rollouts=0)
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
    )


def shown(given: ExperimentPage) -> str:
    output = io.StringIO()
    Console(file=output, width=200).print(render(given, CLOCK))
    return output.getvalue()


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


def test_an_evaluation_says_beside_its_score_which_rows_were_no_question_of_the_model() -> None:
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
    assert "0.000 -> 0.000  12 of 12 prompts were cut" in shown(given)
    assert "no answer" not in shown(given)
