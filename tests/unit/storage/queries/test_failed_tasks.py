"""Tasks that failed: the tables tell the same of them as the log; on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.failed_tasks import failed_tasks
from rftd.streams.folds.failed_tasks import FailedTasks
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def test_tables_and_log_tell_the_same(either: AsyncEngine) -> None:
    run = SyntheticRun(Recorder()).write()
    run.go_wrong()
    groups = [run.explore(failed=2), run.explore(failed=4)]
    log = MemoryLog()
    for start in range(0, len(run.recorder.drafts), 500):
        await log.append(run.recorder.drafts[start : start + 500])
    projector = Projector(log, either, clock=ManualClock())
    await projector.catch_up()
    await projector.close()
    async with either.connect() as connection:
        told = await failed_tasks(connection)
    assert told == await FailedTasks().read(log)
    assert [task.group for task in told[:2]] == groups[::-1]
    assert [task.failed for task in told[:2]] == [4, 2]
    assert all(task.tries and task.row >= 0 for task in told)
