"""`Client.local`: a daemon that begins and ends with a program, and leaves nothing running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.until import poll

import rftd

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def processes_of(folder: Path) -> list[int]:
    """Living processes that name the folder in their command line."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or ()) and process.pid != os.getpid()
    ]


def test_a_program_submits_waits_compares_forks_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    Scene(tmp_path).write(EXPERIMENT)
    with rftd.Client.local(folder) as client:
        with pytest.warns(UserWarning, match="memorized"):
            run = client.submit("exp.yaml", name="first", stages=[], buffer__total_steps=6)
        assert run.wait(show=False).state == "completed"
        assert len(run.steps()) == 6
        with rftd.Client.local(folder) as beside:
            assert beside.url == client.url, "a daemon that serves the folder is used"
        second = run.fork(3, buffer__total_steps=7)
        assert second.wait(show=False).step == 7
        rows = rftd.compare(run, second, points=2)
        assert [(row["run"], row.step) for row in rows.to_dicts() and rows] == [
            ("first", 3), ("first-fork-3", 3), ("first", 6), ("first-fork-3", 6),
        ]  # fmt: skip
    assert processes_of(folder) == []


def test_an_asynchronous_program_has_its_own_daemon_too(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def program() -> int:
        async with rftd.AsyncClient.local(folder) as client:
            assert processes_of(folder)
            return len(await client.runs())

    assert asyncio.run(program()) == 0
    assert processes_of(folder) == []


def test_a_killed_program_takes_its_daemon_along(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    program = f"import time, rftd; c = rftd.Client.local({str(folder)!r}); print(c.url, flush=True); time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http")
        assert processes_of(folder)
        process.send_signal(signal.SIGKILL)
    poll(lambda: not processes_of(folder))


def test_a_daemon_that_cannot_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(rftd.RftdError, match="ended with status 2") as raised:
        rftd.Client.local(tmp_path / "data", no_such_option=1)
    assert raised.value.where == str(tmp_path / "data" / "local.log")
