"""`rftd why` against a real daemon, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic.daemon.command_line import Rftd


def test_an_ended_experiment(rftd: Rftd) -> None:
    said = rftd("why", "small")
    assert said.status == 0
    assert " is completed" in said.out
    assert "experiment  completed" in said.out
    data = json.loads(rftd("why", "small", "-o", "json").out)
    assert sorted(data) == ["asked_at", "experiment", "live", "name", "status", "waits"]
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
