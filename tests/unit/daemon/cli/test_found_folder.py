"""Verbs that read a log themselves find the folder of the daemon that `rftd get` would ask."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.folder_log import keep_for
from rftd.daemon.trust.user_state import KnownDaemon, UserState
from rftd.streams.sqlite.log import SqliteLog

URL = "http://127.0.0.1:7071"


@pytest.fixture
def elsewhere(rftd: Rftd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFolder:
    """The folder of this user's daemon, which is not the one where the command line runs."""
    folder = DataFolder(tmp_path / "elsewhere")
    run = SyntheticRun(Recorder(), name="small").write()

    async def fill() -> None:
        log = await SqliteLog.open(folder.log)
        await log.append(run.recorder.drafts)
        await log.close()

    asyncio.run(fill())
    monkeypatch.delenv("RFTD_SERVER", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    daemon = KnownDaemon(url=URL, folder=str(folder.root), folder_id="", pid=os.getpid(), token="")
    UserState(os.environ).record(daemon)
    return folder


def experiments(rftd: Rftd, *more: str) -> list[str]:
    said = rftd("verify", "--json", *more)
    return [experiment["name"] for experiment in json.loads(said.out)["experiments"]] if said.out else []


def test_verify_reads_the_log_of_the_daemon_that_get_asks(rftd: Rftd, elsewhere: DataFolder) -> None:
    assert experiments(rftd) == experiments(rftd, "--server", URL) == ["small"]
    assert rftd("rebuild", "--verify").status == 0
    missing = rftd("replay", "small")
    assert "no event log" not in missing.err
    assert rftd("replay", "nobody").status == 3
    assert rftd("export", "small", "--to", "x.rftd").status == 0


def test_a_folder_that_is_named_or_lies_here_comes_first(rftd: Rftd, elsewhere: DataFolder, tmp_path: Path) -> None:
    assert rftd("verify", "--data", str(tmp_path / "none")).status == 3
    assert rftd("verify", "--server", "http://127.0.0.1:7072").status == 3, "another daemon, whose folder nobody knows"

    async def make() -> None:
        await (await SqliteLog.open(DataFolder(tmp_path / ".rftd").log)).close()

    asyncio.run(make())
    assert experiments(rftd) == []


def test_an_earlier_log_in_a_folder_whose_log_is_on_kafka_is_read_and_told(rftd: Rftd, elsewhere: DataFolder) -> None:
    before = rftd("verify")
    assert "--kafka" not in before.err
    keep_for(elsewhere, embedded=False)
    said = rftd("verify")
    assert said.out == before.out
    assert "is an earlier one: its daemon used --kafka last" in " ".join(said.err.split())


def test_a_folder_whose_log_is_on_kafka_says_so(rftd: Rftd, tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "clustered")
    folder.root.mkdir()
    keep_for(folder, embedded=False)
    for verb in (("verify",), ("replay", "x"), ("rebuild", "--verify"), ("export", "x")):
        said = rftd(*verb, "--data", str(folder.root))
        assert said.status == 3, verb
        assert "is elsewhere: its daemon was started with --kafka" in " ".join(said.err.split()), verb
