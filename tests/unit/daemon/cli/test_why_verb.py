"""`rftd why` against a real daemon, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd

from rftd.daemon.cli.output.terminal import one_line, plain
from rftd.daemon.cli.settings import Settings
from rftd.daemon.cli.verbs.why import _print_answer
from rftd.daemon.http.views.experiments import WhyNow
from rftd.daemon.run.why.wait import Wait, sentence_of
from rftd.ops.words import Level

HOSTILE = 'boom\n{"level":"error","event":"forged"}\r\x1b[2J\x1b]0;owned\x07\u202e\u2028\x9b31m end'
"""The text of an exception of a workflow, which goes into events as it is."""


def test_an_ended_experiment(rftd: Rftd) -> None:
    said = rftd("why", "small")
    assert said.status == 0
    assert " is completed" in said.out
    assert "\ncompleted\n" not in said.out
    assert "experiment  completed" in said.out
    data = json.loads(rftd("why", "small", "-o", "json").out)
    assert sorted(data) == ["asked_at", "experiment", "live", "moment", "name", "status", "waits"]
    [wait] = data["waits"]
    assert (wait["role"], wait["state"], wait["level"]) == ("experiment", "completed", 3)
    assert sorted(wait) == [
        *("level", "on_whom", "role", "since_at", "slot", "state", "unblock", "waiting_for", "worker"),
    ]


def test_what_is_refused(rftd: Rftd, tmp_path: Path) -> None:
    unknown = rftd("why", "nobody")
    assert unknown.status == 3
    assert "no experiment 'nobody'" in unknown.err
    away = rftd("why", "small", "--server", "http://127.0.0.1:9")
    assert away.status == 4
    assert "no daemon answers" in away.err
    (tmp_path / "empty" / "log").mkdir(parents=True)
    nothing = rftd("why", "small", "--server", "http://127.0.0.1:9", "--data", str(tmp_path / "empty"))
    assert nothing.status == 3
    assert "no event log" in nothing.err


@pytest.mark.parametrize("columns", [60, 200])
def test_what_a_third_party_raised_begins_no_line_and_orders_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    waits = [
        Wait("experiment", "failed", HOSTILE, "you", HOSTILE, Level.STUCK, since_ns=1),
        Wait("explorer", "restarting", f"its process; {HOSTILE}", "fleet", "soon", Level.WAITS, slot=0, since_ns=1),
    ]
    _print_answer(
        WhyNow(experiment="0" * 32, name="n", status="failed", live=True, asked_ns=1, waits=waits, moment=None),
        Settings(),
    )
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert "boom\\n{" in "".join(shown.split())
    assert not any(line.strip().startswith("{") for line in shown.splitlines())


def test_text_in_one_line() -> None:
    assert one_line("a  b [c]") == "a  b [c]"
    assert one_line("a\tb\n c\n") == "a  b\\n c"
    assert one_line(HOSTILE).isprintable()
    assert plain("a\u202eb\nc") == "a\\u202eb\nc"


def test_an_experiment_that_failed_waits_for_nothing() -> None:
    """Its sentence began with `waits for RFTD-WRK-003`."""
    failed = Wait("experiment", "failed", "RFTD-WRK-003: no rollout succeeded", "you", "rftd explain", Level.STUCK)
    assert sentence_of(failed) == "experiment RFTD-WRK-003: no rollout succeeded; you: rftd explain"
