"""`rftd verify --files` of an imported experiment: what the export left out is counted, all else is looked at."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rftd.daemon.cli.verbs.verify import files_of
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import SystemClock
from rftd.ops.logs import logger
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.log.log import EventLog
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.verify.checker import verify

LEFT_OUT = "checkpoints that an export or a backup left out"


def saving(spec: ExperimentSpec) -> ExperimentSpec:
    """The specification with a checkpoint at every second step."""
    return msgspec.structs.replace(
        spec,
        stages=tuple(
            msgspec.structs.replace(stage, trainer=msgspec.structs.replace(stage.trainer, save_interval=2))
            for stage in spec.stages
        ),
    )


@pytest.fixture
async def completed(tmp_path: Path, clock: Any, ids: Any, fake_world: Any) -> tuple[EventLog, ExperimentSpec]:
    """The log of an experiment that is completed and kept every checkpoint, and its specification."""
    log = MemoryLog()
    spec = saving(fake_world.spec(tmp_path))
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    async with asyncio.timeout(60):
        await Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger()).drive()
    for name, checkpoints in (("newest", "newest"), ("whole", "all")):
        path = tmp_path / f"{name}.rftd"
        await export_experiment(log, experiment, path, release="1", clock=clock, checkpoints=checkpoints)
    return log, spec


async def imported(log: EventLog, path: Path, home: Path, **options: Any) -> str:
    """The job folder of the experiment, which is in the log now."""
    done = await import_experiment(log, path, home=home, clock=SystemClock(), **options)
    assert done.equal is not False
    return done.spec.job_dir


async def seen(log: EventLog) -> tuple[list[str], dict[str, int]]:
    """What is wrong with the files, and the number of those that were not looked at."""
    report = await verify(log, look=files_of)
    assert {finding.rule for finding in report.findings} <= {"files-are-whole"}
    return [finding.what for finding in report.findings], report.experiments[0].not_looked_at


def checkpoints(job_dir: str) -> list[Path]:
    return sorted(Path(job_dir).glob("*/global_step_*"))


@pytest.mark.anyio
async def test_an_import_promises_what_came_along(tmp_path: Path, clock: Any, completed: Any) -> None:
    _, spec = completed
    total = len(checkpoints(spec.job_dir))
    shutil.move(spec.job_dir, tmp_path / "gone")
    log = MemoryLog()
    job_dir = await imported(log, tmp_path / "newest.rftd", tmp_path / "home")
    [newest] = checkpoints(job_dir)
    assert await seen(log) == ([], {LEFT_OUT: total - 1})
    heads = await log.heads()
    await imported(log, tmp_path / "newest.rftd", tmp_path / "home")
    assert await log.heads() == heads, "a repeated import says nothing new"

    # An export of what was imported leaves the same out, and says so in the next log.
    [experiment] = (await verify(log)).experiments
    again = tmp_path / "again.rftd"
    await export_experiment(log, experiment.experiment, again, release="1", clock=clock, checkpoints="all")
    third = MemoryLog()
    await imported(third, again, tmp_path / "third", moves=[(job_dir, str(tmp_path / "third"))])
    assert await seen(third) == ([], {LEFT_OUT: total - 1})

    # What is missing of the rest is missed, and so is all of it once a whole export has come.
    shutil.rmtree(newest)
    findings, not_looked_at = await seen(log)
    assert findings
    assert all(str(newest) in what for what in findings)
    assert not_looked_at == {LEFT_OUT: total - 1}
    await imported(log, tmp_path / "whole.rftd", tmp_path / "home")
    assert await seen(log) == ([], {})
    oldest = checkpoints(job_dir)[0]
    shutil.rmtree(oldest)
    findings, not_looked_at = await seen(log)
    assert not_looked_at == {}
    assert any(str(oldest) in what for what in findings)


@pytest.mark.anyio
async def test_the_log_that_it_was_exported_from_still_promises_all(tmp_path: Path, completed: Any) -> None:
    log, spec = completed
    await imported(log, tmp_path / "newest.rftd", tmp_path / "home")
    assert await seen(log) == ([], {})
    oldest = checkpoints(spec.job_dir)[0]
    shutil.rmtree(oldest)
    findings, not_looked_at = await seen(log)
    assert any(str(oldest) in what for what in findings)
    assert not_looked_at == {}


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["latest_checkpointed_iteration.txt", "latest_state_dict_iteration.txt"])
async def test_the_markers_are_looked_at(completed: Any, name: str) -> None:
    log, spec = completed
    marker = checkpoints(spec.job_dir)[-1].parent / name
    for content, words in (
        ("7000", "names step 7000, and there is no"),
        ("2", "names step 2: the last checkpoint is"),
        ("two", "'two' is no step"),
        (None, "is missing: the last checkpoint is"),
    ):
        if content is None:
            marker.unlink()
        else:
            marker.write_text(content)
        [finding], _ = await seen(log)
        assert str(marker) in finding
        assert words in finding
