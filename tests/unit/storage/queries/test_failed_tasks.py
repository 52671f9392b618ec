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
from rftd.streams.log import topics
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition
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


class BusyLog(MemoryLog):
    """A log where a group is leased and closed once a reader reaches the partition of the run's closings."""

    def __init__(self, run: SyntheticRun) -> None:
        super().__init__()
        self._run = run
        self._is_busy = True

    async def read(self, partition: Partition, start: int, **options: int) -> list[Record]:
        if self._is_busy and partition == topics.partition_of(topics.TASKS, self._run.id):
            self._is_busy = False
            written = len(self._run.recorder.drafts)
            self._run.explore(failed=1)
            await self.append(self._run.recorder.drafts[written:])
        return await super().read(partition, start, **options)


async def test_a_task_failing_during_the_read_is_listed_with_its_lease() -> None:
    """The lease is in a partition already read, the closing in one not yet read."""
    runs = (SyntheticRun(Recorder(seed)).write() for seed in range(100))
    run = next(run for run in runs if topics.partition_of(topics.TASKS, run.id).number > 1)
    log = BusyLog(run)
    for start in range(0, len(run.recorder.drafts), 500):
        await log.append(run.recorder.drafts[start : start + 500])
    for _ in range(2):
        assert all(task.tries and task.row >= 0 for task in await FailedTasks().read(log))
