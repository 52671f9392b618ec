"""`rftd dlq` against a real daemon, and against a log without one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd, Served
from synthetic.log.garbage import garbage
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.streams.log.codec import Writer
from rftd.streams.log.deadletters import DeadLetterBox
from rftd.streams.sqlite.log import SqliteLog

AWAY = ("--server", "http://127.0.0.1:9")


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    """A log with one run, a task of which failed, and records of strangers."""
    made, clock = DataFolder(tmp_path / "data"), SystemClock()

    async def fill() -> None:
        await asyncio.to_thread(made.prepare)
        log, engine = await SqliteLog.open(made.log), open_database(made.state_url)
        run = SyntheticRun(Recorder()).write()
        run.explore(failed=4)
        await log.append(run.recorder.drafts)
        await log.append(garbage(run.id, SystemIds(clock), clock)[:3])
        letters = DeadLetterBox(log, Writer(source="test", clock=clock, ids=SystemIds(clock)), clock=clock)
        await Projector(log, engine, clock=clock, report=letters.report).catch_up()
        await engine.dispose()
        await log.close()

    asyncio.run(fill())
    return made


def test_a_log_without_a_daemon(rftd: Rftd, folder: DataFolder) -> None:
    data = (*AWAY, "--data", str(folder.root))
    said = rftd("dlq", "ls", *data)
    assert said.status == 0, said.err
    assert said.out.count("open") == 4
    assert said.out.count(" record ") == 3
    items = json.loads(rftd("dlq", "ls", "-o", "json", *data).out)["items"]
    [task] = [item for item in items if item["kind"] == "task"]
    assert sorted(task) == [
        *("attempts", "by", "code", "decided_at", "experiment", "found_at", "group", "id", "kind", "reason", "state"),
        *("task", "verdict"),
    ]
    shown = rftd("dlq", "show", task["task"], *data)
    assert shown.status == 0
    assert f"task/{task['task'].split('/')[-1]} {task['id']} is open" in shown.out
    [record, *_] = [item for item in items if item["kind"] == "record"]
    assert json.loads(rftd("dlq", "show", record["id"], "--json", *data).out)["record"]["readable"] is False
    assert rftd("dlq", "show", "rftd.tasks/0@99999", *data).status == 3
    assert rftd("dlq", "retry", task["id"], *data).status == 4, "only a daemon writes"


def test_a_daemon_with_nothing_set_aside(rftd: Rftd, served: Served) -> None:
    said = rftd("dlq", "ls")
    assert (said.status, said.out, said.err) == (0, "", "no open dead letters\n")
    assert json.loads(rftd("dlq", "ls", "--json").out) == {"items": [], "open": 0, "next": None}
    assert rftd("dlq", "show", "small/task/1.0").status == 3
    assert rftd("dlq", "retry", "small/task/1.0").status == 3
    assert rftd("dlq", "drop", "small/task/1.0").status == 2
    assert rftd("dlq", "ls", "--experiment", "nobody").status == 3
    assert rftd("dlq", "ls", *AWAY).status == 4
