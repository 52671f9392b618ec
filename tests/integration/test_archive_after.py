"""What ended long ago is archived by rule, on record, and what somebody restored or still needs is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.daemon.moved_clock import MovedClock

from rftd.daemon.run.supervisor.archiver import Archiver
from rftd.daemon.run.supervisor.archiving import ARCHIVE_RULE_AUTHOR
from rftd.daemon.serve.keeping import Keeping
from rftd.ops.errors import DiskFullError
from rftd.streams.events.experiment import ExperimentArchived
from rftd.streams.folds.spine import Kept
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
AFTER_S = 30 * DAY_S


@pytest.fixture
def moved() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def desk(tmp_path: Path, moved: MovedClock, clock: Any, ids: Any, fake_world: Any) -> AsyncIterator[ForkDesk]:
    log = MemoryLog()
    yield ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), moved, ids)
    await log.close()


def checkpoints(job_dir: str) -> list[Path]:
    return list(Path(job_dir).rglob("global_step_*"))


async def archived(desk: ForkDesk, experiment: Any) -> list[str]:
    """By whom the experiment was archived, each time."""
    home = topics.partition_of(topics.EXPERIMENTS, experiment)
    events = [decode(record) for record in await desk.log.read(home, 0, max_records=100_000)]
    return [
        decoded.event.by
        for decoded in events
        if decoded.head.experiment == experiment and isinstance(decoded.event, ExperimentArchived)
    ]


async def test_an_old_one_is_archived_once_and_a_restored_one_stays(
    desk: ForkDesk, moved: MovedClock, ids: Any
) -> None:
    async with desk.open(keeping=Keeping(archive_after_s=AFTER_S)) as supervisor:
        experiment = await desk.submit(supervisor)
        await desk.left()
        moved.ahead_s = AFTER_S - DAY_S
        await supervisor._make_archiving(AFTER_S).look(supervisor._refresh)
        assert await archived(desk, experiment) == []
        moved.ahead_s = AFTER_S + DAY_S
        for _ in range(2):
            await supervisor._make_archiving(AFTER_S).look(supervisor._refresh)
        assert await archived(desk, experiment) == [ARCHIVE_RULE_AUTHOR]
        entry = supervisor._registry.entries[experiment]
        assert entry.spine.kept is Kept.ARCHIVED
        assert checkpoints(entry.job_dir) == []
        await supervisor.restore(experiment, source="", request_id=ids.new())
        assert checkpoints(entry.job_dir) != []
        await supervisor._make_archiving(AFTER_S).look(supervisor._refresh)
        assert await archived(desk, experiment) == [ARCHIVE_RULE_AUTHOR]


async def test_one_that_cannot_be_archived_keeps_no_other_one_here(
    desk: ForkDesk, moved: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.open(keeping=Keeping(archive_after_s=AFTER_S)) as supervisor:
        first = await desk.submit(supervisor, "name=first")
        second = await desk.submit(supervisor, "name=second")
        await desk.left()
        moved.ahead_s = AFTER_S + DAY_S
        archive = Archiver.archive

        async def failing(self: Archiver, entry: Any, *args: Any, **options: Any) -> Any:
            if entry.id == first:
                raise DiskFullError("no space", where="here")
            return await archive(self, entry, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Archiver, "archive", failing)
            await supervisor._make_archiving(AFTER_S).look(supervisor._refresh)
        assert await archived(desk, first) == []
        assert await archived(desk, second) == [ARCHIVE_RULE_AUTHOR]
        await supervisor._make_archiving(AFTER_S).look(supervisor._refresh)
        assert await archived(desk, first) == [ARCHIVE_RULE_AUTHOR]


async def test_without_the_rule_nothing_is_archived(desk: ForkDesk, moved: MovedClock) -> None:
    async with desk.open() as supervisor:
        experiment = await desk.submit(supervisor)
        await desk.left()
        moved.ahead_s = 10 * AFTER_S
        await supervisor.archive_by_rule()
        assert await archived(desk, experiment) == []
