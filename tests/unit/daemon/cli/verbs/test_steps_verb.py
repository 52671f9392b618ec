"""What `rftd steps` draws of steps as a trainer reports them: at two widths, with any names and numbers."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rftd.daemon.cli.verbs.steps import render
from rftd.storage.queries.steps import StepRow

REPORTED = {
    "actor/final_loss": -1.234567e-5,
    "actor/pg_loss": 9.0,
    "actor/kl_loss": 1.234e-7,
    "actor/grad_norm": 0.0123456,
    "response_length/mean": 1234.567,
    **{f"correction/some_long_name_{number}/mean": number / 7 for number in range(40)},
}


def row(step: int, metrics: dict[str, float | None], *, reward: float | None = -0.12345) -> StepRow:
    return StepRow(
        step=step,
        generation=0,
        stage=0,
        batch="b",
        items=64,
        tokens=123_456,
        duration_s=12.345,
        checksum="c",
        sha256=None,
        metrics=metrics,
        completed_ns=0,
        reward_mean=reward,
        staleness_mean=None if reward is None else 1.2345,
        staleness_p95=1,
        staleness_max=1,
        incomplete=False,
    )


def drawn(rows: list[StepRow], metrics: list[str] | None, width: int, height: int) -> list[str]:
    """The lines that a terminal of this size would show."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(render(rows, metrics, width=console.width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_telling_figures_are_one_line_a_step(width: int, height: int) -> None:
    lines = drawn([row(step, REPORTED) for step in (99_999, 100_000)], None, width, height)
    assert len(lines) == 3, lines
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:6] == ["STEP", "REWARD", "LOSS", "KL", "GRAD", "LENGTH"]
    assert lines[0].split()[-2:] == ["TOK/S", "S/STEP"]
    # The whole loss, not the part that stands beside it.
    assert lines[1].split()[:6] == ["99999", "-0.123", "-1.23e-05", "1.23e-07", "0.0123", "1235"]
    assert lines[1].split()[-2:] == ["10000", "12.3"]
    assert ("TOKENS" in lines[0]) is (width == 200)


def test_a_stage_without_rewards_shows_its_loss() -> None:
    lines = drawn([row(1, {"actor/sft_loss": 2.5}, reward=None)], None, 80, 24)
    assert lines[0].split() == ["STEP", "LOSS", "TOKENS", "TOK/S", "S/STEP"]
    assert lines[1].split() == ["1", "2.5", "123456", "10000", "12.3"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_many_figures_are_several_tables(width: int, height: int) -> None:
    wanted = [name for name in REPORTED if name.startswith("correction/")]
    lines = drawn([row(step, REPORTED) for step in (1, 2)], wanted, width, height)
    assert max(map(len, lines)) <= width
    headers = [line.split() for line in lines if line.startswith("STEP")]
    assert [name for each in headers for name in each if name != "STEP"] == wanted
    assert all(each[0] == "STEP" for each in headers)
    assert len([line for line in lines if line.startswith("   1")]) == len(headers) > 1


def test_a_name_cannot_command_the_terminal() -> None:
    name = "score\x1b]0;owned\x07\nSTEP 9"
    lines = drawn([row(1, {name: 1.0})], [name], 80, 24)
    assert len(lines) == 2, lines
    assert "\x1b" not in "".join(lines)
    assert "score\\x1b]0;owned\\x07\\nSTEP 9" in lines[0]
