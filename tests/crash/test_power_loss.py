"""The embedded log on a disk that loses power, and on one that fails: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from rftd.ops.errors import UnreachableError
from rftd.streams.sqlite.log import SqliteLog

# What SQLite does not pass on, an unlock at the close for example, APSW reports in this way.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.slow
def test_450_power_cuts_lose_nothing() -> None:
    from synthetic.faults.power_loss import LIVES, cut_power

    counts = cut_power(range(150))
    assert counts.broken == []
    assert counts.refused == []
    assert counts.cuts > 100 * LIVES
    assert counts.acknowledged > 5000


@pytest.mark.slow
def test_a_log_that_does_not_sync_its_commits_is_caught() -> None:
    """Without this, the test above could pass on a disk that loses nothing."""
    from synthetic.faults.power_loss import cut_power

    counts = cut_power(range(40), synchronous="normal")
    assert len(counts.broken) + len(counts.refused) > 10


@pytest.mark.slow
@pytest.mark.parametrize(("error", "fail_for"), [(apsw.IOError, 1), (apsw.FullError, 3)])
def test_every_operation_of_the_disk_may_fail(error: type[apsw.Error], fail_for: int) -> None:
    from synthetic.faults.nth_failure import fail_each

    counts = fail_each(error, fail_for=fail_for)
    assert counts.broken == []
    assert {"open", "read", "write", "sync", "lock"} <= counts.failed.keys()
    assert counts.refusals > counts.lives // 4


def test_recovery_waits_for_a_checkpoint_that_is_under_way(tmp_path: Path) -> None:
    """SQLite refuses a second one at once: on a slow disk a producer was refused on every try."""
    asyncio.run(_failed_beside_a_checkpoint(tmp_path))


async def _failed_beside_a_checkpoint(folder: Path) -> None:
    from synthetic.faults.log_workload import Oracle, small_checkpoints
    from synthetic.faults.shaky_disk import ShakyDisk, _Image

    begun, go_on = threading.Event(), threading.Event()

    class SlowDisk(ShakyDisk):
        def sync(self, image: _Image) -> None:
            if threading.current_thread().name == "log-checkpointer":
                begun.set()
                assert go_on.wait(60)
            super().sync(image)

    disk, oracle = SlowDisk(), Oracle()
    with small_checkpoints(), disk.in_use():
        log = await SqliteLog.open(folder)
        try:
            while not begun.is_set():
                await oracle.append(log, oracle.batch(2))
            disk.fail_now()
            numbers = oracle.batch(2)
            with pytest.raises(UnreachableError):
                await oracle.append(log, numbers)
            async with asyncio.TaskGroup() as group:
                again = group.create_task(oracle.append(log, numbers))
                await asyncio.wait([again], timeout=0.2)
                go_on.set()
        finally:
            go_on.set()
            await log.close()
    assert await oracle.broken(folder) == []
