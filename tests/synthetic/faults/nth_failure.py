"""A small life of the embedded log, in which the n-th thing that SQLite asks of its files fails."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import apsw
import msgspec
from synthetic.faults.log_workload import Oracle, small_checkpoints
from synthetic.faults.shaky_disk import ShakyDisk

from rftd.ops.errors import RftdError
from rftd.streams.sqlite.log import SqliteLog

BATCHES = 12
TRIES = 8
"""The most attempts of each append and each opening; a producer repeats what failed."""


class FailureCounts(msgspec.Struct, kw_only=True):
    """The outcomes of a series of lives, one for each n."""

    lives: int = 0
    failed: dict[str, int] = {}
    """Operations that failed, by kind."""
    refusals: int = 0
    """Errors that a producer saw and answered with the same drafts again."""
    broken: list[str] = []


def fail_each(error: type[apsw.Error], *, fail_for: int = 1) -> FailureCounts:
    """A life for every n, with that operation and the `fail_for - 1` next failing, until n is beyond the last one."""
    counts = FailureCounts()
    with small_checkpoints():
        while (disk := _life(counts.lives + 1, error, fail_for, counts)).failed is not None:
            counts.lives += 1
            counts.failed[disk.failed] = counts.failed.get(disk.failed, 0) + 1
    return counts


def _life(number: int, error: type[apsw.Error], fail_for: int, counts: FailureCounts) -> ShakyDisk:
    disk = ShakyDisk(fail_at=number, fail_for=fail_for, error=error)
    with tempfile.TemporaryDirectory(prefix="rftd-") as folder:
        broken = asyncio.run(_lived(Path(folder), disk, counts))
    counts.broken += [f"{error.__name__} at operation {number} ({disk.failed}): {each}" for each in broken]
    return disk


async def _lived(folder: Path, disk: ShakyDisk, counts: FailureCounts) -> list[str]:
    oracle, refusal = Oracle(), ""
    with disk.in_use():
        log = await _opened(folder, counts)
        for batch in range(BATCHES):
            numbers = oracle.batch(1 + batch % 4)
            for _ in range(TRIES):
                try:
                    await oracle.append(log, numbers)
                    break
                except RftdError as error:
                    counts.refusals += 1
                    refusal = error.what
            if batch == BATCHES // 2:
                await log.close()
                log = await _opened(folder, counts)
        await log.close()
    broken = await oracle.broken(folder)
    missing = oracle.next - len(oracle.places)
    return broken + ([f"{missing} drafts were never taken: {refusal}"] if missing else [])


async def _opened(folder: Path, counts: FailureCounts) -> SqliteLog:
    for _ in range(TRIES):
        try:
            return await SqliteLog.open(folder)
        except RftdError:
            counts.refusals += 1
    raise AssertionError(f"the log in {folder} does not open any more")
