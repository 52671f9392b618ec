"""What `rftd get` says of a run whose explorers waited too long for weights."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from rftd.daemon.client.replies import Books, Detail, Overdue, Page, Stage, Summary
from rftd.daemon.output.page import render
from rftd.ops.clock import ManualClock, iso

CLOCK = ManualClock()
NOW = iso(CLOCK.now_ns())


def page(*overdue: Overdue, windows: int) -> Page:
    summary = Summary(
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
        submitted_at=NOW,
        started_at=NOW,
        state_at=NOW,
    )
    stage = Stage(
        name="rft", kind="both", algorithm="grpo", total_steps=9, first_version=0, started_at=NOW, completed_at=None
    )
    books = Books(produced=0, waiting=0, cooling=0, planned=0, retired={}, balance=0, open=0, late=0, failed_rollouts=0)
    detail = Detail(
        summary=summary, job_dir="/j", stages=[stage], warnings=[], books=books, groups_closed=0, generations=1
    )
    return Page(
        experiment=detail,
        reward_curve=[],
        evals=[],
        weights=[],
        checkpoints=[],
        workers=[],
        overdue=list(overdue),
        overdue_windows=windows,
    )


def shown(given: Page) -> str:
    output = io.StringIO()
    Console(file=output, width=200).print(render(given, CLOCK))
    return output.getvalue()


LATE = Overdue(stage=0, window=4, wanted=4, version=2, waited_s=60.2, reason="version 4 did not come", overdue_at=NOW)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (page(LATE, windows=1), "overdue       window 4 of rft went on with version 2 0s ago: version 4 did not come"),
        (page(msgspec.structs.replace(LATE, version=-1), windows=1), "window 4 of rft went on waiting 0s ago"),
        (page(LATE, windows=12), "12 windows; the last: window 4 of rft"),
    ],
)
def test_overdue_weights_are_shown(given: Page, says: str) -> None:
    assert says in shown(given)
    assert "overdue" not in shown(page(windows=0))
