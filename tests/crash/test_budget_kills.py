"""A run pauses at the same budgets whatever is killed at those moments, and trains the same weights."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from synthetic.daemon.scene import ENDED, EXPERIMENT, Scene
from synthetic.deaths.killing import IN_ORDER, Killing, trained

from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.streams.events.experiment import ExperimentPaused
from rftd.streams.folds.spending import BUDGET

LIMIT: Final = 100
"""So few tokens that every step or so spends them."""
BUDGETED: Final = (
    *("stages=[]", "buffer.total_steps=16", f"limits.tokens={LIMIT}", "explorer.eval_interval=1000"),
    *IN_ORDER,
)
REQUEST: Final = "01933333-0000-7000-8000-000000000037"
KILLS: Final = 20


class Spent(NamedTuple):
    """The budgets at which a run paused, and what it trained."""

    budgets: list[str]
    weights: list[str]
    tokens: float
    findings: list[str]


def spent(folder: Path, kills: int, chance: random.Random) -> Spent:
    """What a run spends in which processes are killed so often when a budget is nearly or wholly spent."""
    folder.mkdir()
    scene = Scene(folder)
    killing = Killing(scene, chance)
    with scene.host:
        name = scene.submit(EXPERIMENT, *BUDGETED, request_id=REQUEST)
        page = until_ended(scene, killing, name, kills)
        assert page.experiment.summary.state == "completed", page.experiment.summary
        assert killing.moments == kills
        reasons = [event.reason for event in scene.events(ExperimentPaused) if event.cause == BUDGET]
        return Spent(
            budgets=[re.findall(r" of ([0-9,]+) tokens spent", reason)[0] for reason in reasons],
            weights=trained(scene),
            tokens=next(budget.spent for budget in page.budgets if budget.field == "tokens"),
            findings=[str(finding) for finding in scene.verified().findings],
        )


def until_ended(scene: Scene, killing: Killing, name: str, kills: int) -> ExperimentPage:
    """The page of a run that is resumed after each pause; something dies shortly before one, and within it."""
    struck: tuple[str, float] | None = None
    while True:
        page = scene.page(name)
        if page is None:
            continue
        state = page.experiment.summary.state
        if state in ENDED:
            return page
        budget = next(iter(page.budgets), None)
        if budget is None:  # the daemon has not read of it yet
            continue
        moment = (state, budget.limit)
        at_hand = state == "paused" or (state == "running" and budget.limit - budget.spent < LIMIT / 2)
        if at_hand and moment != struck and killing.moments < kills:
            if killing.strike(page):
                struck = moment
        elif state == "paused":
            scene.rftd("resume", name)
        else:
            time.sleep(0.02)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1500)  # twenty starts of a daemon, each slow where much else runs
def test_kills_at_the_moments_of_budgets_change_no_pause(tmp_path: Path, chance: random.Random) -> None:
    untouched = spent(tmp_path / "untouched", 0, chance)
    killed = spent(tmp_path / "killed", KILLS, chance)
    assert untouched.findings == killed.findings == []
    assert killed.budgets == untouched.budgets == [f"{LIMIT * (n + 1):,}" for n in range(len(untouched.budgets))]
    assert len(untouched.budgets) == untouched.tokens // LIMIT > KILLS / 2
    assert killed.weights == untouched.weights
    assert killed.tokens == untouched.tokens
