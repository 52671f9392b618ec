"""The demo's line of progress fits every width, and its last page has an answer that is right and one that is wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from synthetic.daemon.daemon_parts import DaemonParts

from rftd.daemon.cli.output.terminal import fitted
from rftd.daemon.demo.outcome import DemoOutcome, Example, text_of
from rftd.daemon.demo.progress import DemoReading, Progress, line_of
from rftd.daemon.http.views.experiments import page_of
from rftd.ops.clock import ManualClock
from rftd.storage.queries.curve import RewardCurves

pytestmark = pytest.mark.anyio


@pytest.fixture
async def reading(parts: DaemonParts) -> DemoReading:
    async with parts.engine.connect() as connection:
        page = await page_of(connection, parts.run.id, RewardCurves())
    rewards = [point.reward_mean for point in page.reward_curve]
    return DemoReading(summary=page.experiment.summary, rewards=rewards, evals=page.evals)


async def test_the_line_is_as_wide_as_there_is_room(reading: DemoReading) -> None:
    long = msgspec.structs.replace(reading, rewards=list(reading.rewards) * 40)
    for width in range(1, 140):
        assert cell_len(line_of(long, 1234.5, width)) <= width
    assert line_of(reading, 3.21, 79).startswith("  3.2 s  rft      step 5/5  reward ")
    assert "held-out 0.75" in line_of(reading, 3.21, 79)
    assert len(line_of(long, 3.21, 79)) > len(line_of(reading, 3.21, 79))
    assert line_of(reading, 3.21, 30) == "  3.2 s  rft      step 5/5"


@pytest.mark.parametrize("columns", [40, None])
async def test_a_terminal_has_one_line_and_a_file_several(reading: DemoReading, columns: int | None) -> None:
    written: list[str] = []
    clock = ManualClock()
    progress = Progress(written.append, width=lambda: columns, monotonic_s=clock.monotonic_s)
    assert progress.due()
    progress.show(reading)
    assert not progress.due()
    progress.show(reading)
    progress.end()
    progress.end()
    text = "".join(written)
    assert text.count("\n") == (2 if columns is None else 1)
    assert text.count("\r\x1b[2K") == (0 if columns is None else 2)


async def test_the_last_page_fits_and_shows_two_answers() -> None:
    examples = [
        Example(experience="0" * 36, question="1+2=", answer="3", truth="3", right=True, version=9),
        Example(experience="1" * 36, question="4+5=", answer="8", truth="9", right=False, version=8),
    ]
    outcome = DemoOutcome(
        state="completed",
        reason="",
        rewards=[0.1, 0.9] * 50,
        after_sft=0.3,
        after_grpo=0.9,
        last_rewards_mean=0.9,
        staleness_max_versions=2,
        staleness_mean_versions=1.5,
        grpo_s=30.0,
        trained_tokens_per_s=12345.6,
        steps=900,
        grpo_steps=300,
        last_batch=[],
        generations=1,
        examples=examples,
    )
    for clustered in (False, True):
        text = text_of(
            outcome,
            program=".venv/bin/rftd",
            url="http://127.0.0.1:12345",
            experiment="sums",
            folder=Path("out/demo-20260101000000"),
            wall_s=60.0,
            restarts=1,
            clustered=clustered,
        )
        assert "right answer  1+2=3   (by version 9)" in text
        assert "wrong answer  4+5=8; correct is 9   (by version 8)" in text
        assert "reward        ▁" in text
        assert max(map(cell_len, fitted(text, 80).split("\n"))) <= 80
