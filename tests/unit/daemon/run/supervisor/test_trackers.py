"""The daemon's trackers: started once there is a folder, again when they fail, given up once nothing more comes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import until

from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.trackers import Trackers
from rftd.daemon.trust.allowances import ALLOW_URLS, ROOTS, SECRETS, Allowances
from rftd.ops.clock import ManualClock
from rftd.ops.logs import logger
from rftd.streams.events.experiment import Grant
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.hosts.environment import WorkerEnvironment

pytestmark = pytest.mark.anyio
SCRIPT = "import os, sys; open(sys.argv[-1], 'a').write(os.environ.get('WANDB_API_KEY', '-')); sys.exit(3)"


class QuickClock(ManualClock):
    """A clock that lets others work while somebody sleeps on it."""

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0.01)
        await super().sleep(delay_s)


class Followed:
    """One experiment under its trackers."""

    def __init__(self, starts: Path) -> None:
        self._starts = starts
        self.looks = 0
        """The times that the experiments were looked at."""

    @property
    def starts(self) -> str:
        """A letter for each process that was started: its key, or a dash."""
        return self._starts.read_text()

    async def look_again(self, times: int) -> None:
        """Returns once the experiments were looked at so often more."""
        goal = self.looks + times
        await until(lambda: self.looks >= goal)


@asynccontextmanager
async def followed(
    folder: Path, *, ended: bool, kind: str = "jsonl", grants: tuple[Grant, ...] = ()
) -> AsyncIterator[Followed]:
    """Trackers of one experiment, whose processes fail at once, under a daemon that allows the variable MINE."""
    run = SyntheticRun(Recorder(), job_dir=str(folder / "job"))
    run.begin()
    if ended:
        run.warm_up()
        run.finish()
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    registry = Registry(log)
    await registry.catch_up()
    entry = registry.entries[run.id]
    entry.spine.spec = msgspec.structs.replace(entry.spec, trackers=(TrackerSpec(kind=kind),))
    entry.spine.grants = grants
    starts = folder / "starts"
    starts.touch()
    state = Followed(starts)

    async def known() -> Registry:
        state.looks += 1
        return registry

    trackers = Trackers(
        known,
        "unix:nowhere",
        environment=WorkerEnvironment({"WANDB_API_KEY": "k", "PATH": "/bin"}),
        identity=None,
        allowances=Allowances(secrets={"MINE": ("tracker.example.com",)}),
        clock=QuickClock(),
        logger=logger(),
        command=(sys.executable, "-c", SCRIPT.replace("sys.argv[-1]", repr(str(starts)))),
    )
    task = asyncio.ensure_future(trackers.run())
    try:
        yield state
    finally:
        task.cancel()
        await asyncio.wait([task])
        await registry.close()


async def test_a_run_whose_folder_comes_late_is_followed(tmp_path: Path) -> None:
    async with followed(tmp_path, ended=False) as state:
        await state.look_again(5)
        assert state.starts == ""
        (tmp_path / "job").mkdir()
        await until(lambda: len(state.starts) >= 8)


async def test_a_tracker_of_what_has_ended_is_given_up_after_some_failures(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    async with followed(tmp_path, ended=True) as state:
        await until(lambda: len(state.starts) == 7)
        await state.look_again(350)  # beyond the longest pause
        assert len(state.starts) == 7


@pytest.mark.parametrize(("kind", "key"), [("wandb", "k"), ("jsonl", "-")])
async def test_a_key_is_its_own_tracker_s_alone(tmp_path: Path, kind: str, key: str) -> None:
    (tmp_path / "job").mkdir()
    async with followed(tmp_path, ended=False, kind=kind) as state:
        await until(lambda: state.starts)
        assert set(state.starts) == {key}


@pytest.mark.parametrize("grant", [Grant(SECRETS, "TAKEN_BACK"), Grant(ALLOW_URLS, "10.0.0.1:5000")])
async def test_a_tracker_whose_permission_was_withdrawn_is_not_started(tmp_path: Path, grant: Grant) -> None:
    (tmp_path / "job").mkdir()
    async with followed(tmp_path, ended=False, kind="wandb", grants=(Grant(SECRETS, "MINE"), grant)) as state:
        await state.look_again(350)  # beyond the pause before the next look at its grants
        assert state.starts == ""


async def test_a_tracker_with_its_permissions_is_started(tmp_path: Path) -> None:
    """Files that a daemon does not allow any more are no affair of it: it sends figures alone."""
    (tmp_path / "job").mkdir()
    grants = (Grant(SECRETS, "MINE"), Grant(ROOTS, "/elsewhere"))
    async with followed(tmp_path, ended=False, kind="wandb", grants=grants) as state:
        await until(lambda: state.starts)
