"""Planned batches executed again from the log: equal where nothing was changed, and appending nothing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from rftd.daemon.run.supervisor.run import Run
from rftd.ops.errors import DataError, NotFoundError
from rftd.ops.logs import logger
from rftd.streams.folds.spine import Status
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.engines.fake.trainer import FakeTrainerEngine
from rftd.workers.training import loop
from rftd.workers.training.record import TrainingRecord, read_record
from rftd.workers.training.rerun import Compared, Rerun


@pytest.fixture
async def ran(tmp_path: Path, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch):
    """(log, experiment) of a run whose trainer died in the middle and was started again."""
    log = await SqliteLog.open(tmp_path / "log")
    spec = fake_world.spec(tmp_path)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())

    reached: list[str] = []

    def kill_trainer(name: str) -> None:
        """At the sixth step, between its execution and its event."""
        reached.extend([name] if name == "trainer.before_step_append" else [])
        if len(reached) == 6 and not executor.handles[0].task.done():
            executor.handles[0].kill()

    monkeypatch.setattr(loop.faults, "point", kill_trainer)
    async with asyncio.timeout(60):
        await run.drive()
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    assert run.state.spine.generation == 1
    yield log, experiment
    await log.close()


async def rerun(log: EventLog, record: TrainingRecord, *, at_most: int = 0) -> tuple[int, list[Compared]]:
    """Every step again, and the weight version that it began with."""
    spec = record.state.spine.spec
    assert spec is not None
    with ThreadPoolExecutor(1) as thread:
        again = Rerun(log, record, FakeTrainerEngine(), thread=thread)
        await again.take_up(at_most=at_most)
        began = again.version
        return began, [await again.step(number) for number in range(began + 1, again.last + 1)]


@pytest.mark.anyio
async def test_every_step_is_found_again_and_nothing_is_appended(ran: tuple[EventLog, UUID], clock) -> None:
    log, experiment = ran
    heads = await log.heads()
    record = await read_record(log, experiment, clock=clock)
    began, compared = await rerun(log, record)
    assert began == 0
    assert len(compared) == 8
    assert all(each.equal for each in compared), compared
    assert [each.generation for each in compared] == [0] * 5 + [1] * 3
    assert [each.step for each in compared if each.recorded_sha256] == [2, 3, 5, 7, 8]
    assert await log.heads() == heads


@pytest.mark.anyio
async def test_it_begins_at_the_newest_checkpoint_at_or_below_a_step(ran: tuple[EventLog, UUID], clock) -> None:
    log, experiment = ran
    record = await read_record(log, experiment, clock=clock)
    for at_most, first in ((8, 8), (6, 5), (4, 3), (1, 0)):
        began, compared = await rerun(log, record, at_most=at_most)
        assert began == first
        assert all(each.equal for each in compared), compared


@pytest.mark.anyio
async def test_the_step_after_the_last_and_another_base_are_refused(ran: tuple[EventLog, UUID], clock) -> None:
    log, experiment = ran
    record = await read_record(log, experiment, clock=clock)
    with ThreadPoolExecutor(1) as thread:
        again = Rerun(log, record, FakeTrainerEngine(), thread=thread)
        await again.take_up(at_most=8)
        with pytest.raises(NotFoundError, match="step 9 was never executed"):
            await again.step(9)
    spec = record.state.spine.spec
    assert spec is not None
    record.state.spine.spec = msgspec.structs.replace(spec, seed=spec.seed + 1)
    with pytest.raises(DataError, match="the experiment began with"):
        await rerun(log, record)
