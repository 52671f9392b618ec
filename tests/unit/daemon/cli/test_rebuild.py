"""`rftd rebuild` on a folder that a daemon left behind."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.streams.sqlite.lock_file import LockFile
from rftd.streams.sqlite.log import SqliteLog


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    """A log with one run, and its tables."""
    made = DataFolder(tmp_path / "data")

    async def fill() -> None:
        await asyncio.to_thread(made.prepare)
        log, engine = await SqliteLog.open(made.log), open_database(made.state_url)
        await log.append(SyntheticRun(Recorder()).write().recorder.drafts)
        await Projector(log, engine, clock=SystemClock()).catch_up()
        await engine.dispose()
        await log.close()

    asyncio.run(fill())
    return made


def test_equal_tables_verify_and_others_do_not(rftd: Rftd, folder: DataFolder) -> None:
    state, data = folder.root / "state.db", ("--data", str(folder.root))
    said = rftd("rebuild", "--verify", "--json", *data)
    assert said.status == 0
    assert all(table["equal"] for table in json.loads(said.out)["tables"].values())
    with sqlite3.connect(state) as tables:
        tables.execute("UPDATE steps SET tokens = tokens + 1 WHERE step = 1")
    tables.close()
    differs = rftd("rebuild", "--verify", *data)
    assert differs.status == 1
    assert "differs: steps" in differs.out
    assert rftd("rebuild", *data).status == 0
    assert rftd("rebuild", "--verify", *data).status == 0
    assert sorted(path.name for path in folder.root.glob("state*.db")) == ["state.db"]


def test_tables_in_use_are_not_replaced(rftd: Rftd, folder: DataFolder) -> None:
    lock = LockFile(folder.log)
    try:
        assert rftd("rebuild", "--data", str(folder.root)).status == 5
        assert rftd("rebuild", "--verify", "--data", str(folder.root)).status == 0, "a daemon may run beside it"
    finally:
        lock.release()


def test_a_folder_without_a_log(rftd: Rftd, tmp_path: Path) -> None:
    for flags in ((), ("--verify",)):
        said = rftd("rebuild", *flags, "--data", str(tmp_path / "none"))
        assert said.status == 3
        assert "no event log" in said.err
