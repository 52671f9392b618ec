"""trackio's own readers find in its database what `rftd steps` shows, whenever the follower dies."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
from pathlib import Path

import anyio
import pytest
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.tracking.tracked import Deaths, expected, follow, follow_and_die, written
from synthetic.tracking.trackio_runs import shown_in

from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec

pytest.importorskip("trackio")
pytestmark = pytest.mark.anyio
TRACKIO = TrackerSpec(kind="trackio")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of trackio's database, which it reads from the environment when it is imported."""
    for module in [module for module in sys.modules if module.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, module)
    folder = tmp_path / "runs"
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    return folder


def shown_of(run: SyntheticRun) -> object:
    return shown_in("p", "small", str(run.id))


async def test_the_database_has_every_figure_once_whenever_the_follower_dies(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    deaths = Deaths(random.Random(5).sample(range(1, 60), 20))
    await follow_and_die(log, run, TRACKIO, deaths)
    assert deaths.count == 20
    assert shown_of(run) == await expected("trackio", run, log)


async def test_a_cursor_that_was_removed_doubles_nothing(tmp_path: Path) -> None:
    from trackio import Api

    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TRACKIO)
    alerts = Api().alerts("p")
    (tmp_path / "monitor" / "cursors" / f"trackio.{str(run.id)[:8]}").unlink()
    await follow(log, run, TRACKIO)
    assert shown_of(run) == await expected("trackio", run, log)
    assert Api().alerts("p") == alerts
    assert "completed" in {alert["title"] for alert in alerts}


async def test_its_command_reads_a_figure(tmp_path: Path, folder: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TRACKIO)
    command = [sys.executable, "-P", "-m", "trackio.cli", "get", "metric", "--project", "p", "--json"]
    command += ["--run", "small_trainer", "--metric", "perf/tokens"]
    environ = {**os.environ, "TRACKIO_DIR": str(folder)}
    done = await anyio.run_process(command, env=environ)
    read = [(row["step"], repr(float(row["value"]))) for row in json.loads(done.stdout)["values"]]
    wanted = await expected("trackio", run, log)
    assert read == [(figure.step, figure.value) for figure in wanted if figure.name == "perf/tokens"]


async def test_a_database_that_is_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    write = SQLiteStorage.bulk_log
    calls = 0

    def held(**arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls < 5:
            raise sqlite3.OperationalError("database is locked")
        write(**arguments)

    monkeypatch.setattr(SQLiteStorage, "bulk_log", held)
    await follow(log, run, TRACKIO)
    assert calls > 5
    assert shown_of(run) == await expected("trackio", run, log)
