"""What the embedded log does beyond the contract: recovery after a failed write, the read-only view, its bounds."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.log.scan_chain import scan_chain

from rftd.ops import limits
from rftd.ops.errors import ConflictError, NotFoundError, UnreachableError
from rftd.ops.faults import Faults, InjectedFault
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryFaults, MemoryLog
from rftd.streams.sqlite.lock_file import LockFile
from rftd.streams.sqlite.log import SqliteLog, schema
from rftd.streams.sqlite.view import SqliteView

pytestmark = pytest.mark.anyio

A = Partition("rftd.experiments", 0)


def drafts(start: int, stop: int, size: int = 10) -> list[Draft]:
    return [Draft(A, UUID(int=number + 1), b"head-%d" % number, bytes(size)) for number in range(start, stop)]


async def test_a_refused_folder_gives_its_lock_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise ConflictError("on a network file system", where=str(folder))

    lock = LockFile(tmp_path)
    monkeypatch.setattr("rftd.streams.sqlite.log.refuse_network_file_system", refuse)
    with pytest.raises(ConflictError, match="network"):
        await SqliteLog.open(tmp_path, lock=lock)
    LockFile(tmp_path).release()


@pytest.mark.parametrize("point", ["log.before_commit", "log.after_commit", "log.before_ack"])
async def test_an_append_that_failed_is_retried_on_a_fresh_connection(tmp_path: Path, point: str) -> None:
    faults = Faults(f"{point}=fail@3")
    passed = 0

    def third_only(name: str) -> None:
        nonlocal passed
        passed += name == point
        if passed <= 3:
            faults.point(name)

    log = await SqliteLog.open(tmp_path, point=third_only)
    follower = log.subscribe({A: 0})
    await log.append(drafts(0, 2))
    await log.append(drafts(2, 4))
    with pytest.raises(UnreachableError, match="outcome") as error:
        await log.append(drafts(4, 6))
    assert error.value.fix == "retry the same drafts"
    assert isinstance(log.failure, UnreachableError)
    assert await log.append(drafts(4, 6)) == [Position(A, 4), Position(A, 5)]
    assert log.failure is None
    seen = [record.offset for record in await follower.next(wait_s=5)]
    while len(seen) < 6:
        seen += [record.offset for record in await follower.next(wait_s=5)]
    assert seen == list(range(6))
    await log.close()
    assert scan_chain(tmp_path).records == 6


async def test_a_failed_append_fails_its_group_and_no_other(tmp_path: Path) -> None:
    failing = {"now": False}

    def point(name: str) -> None:
        if failing["now"] and name == "log.before_commit":
            raise InjectedFault("injected")

    log = await SqliteLog.open(tmp_path, point=point)
    await log.append(drafts(0, 1))
    failing["now"] = True
    results = await asyncio.gather(*(log.append(drafts(n, n + 1)) for n in range(1, 20)), return_exceptions=True)
    assert all(isinstance(result, UnreachableError) for result in results)
    failing["now"] = False
    assert len(await log.append(drafts(0, 30))) == 30
    await log.close()


async def test_more_than_the_queue_holds_waits_and_lands(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path)
    size = limits.MIB
    count = 2 * limits.APPEND_QUEUE_SIZE_BYTES // size // 4
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(log.append(drafts(4 * n, 4 * n + 4, size // 2))) for n in range(count)]
    assert sorted(place.offset for task in tasks for place in task.result()) == list(range(4 * count))
    await log.close()


async def test_closing_completes_appends_under_way(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path)
    async with asyncio.TaskGroup() as group:
        appends = [group.create_task(log.append(drafts(n * 100, n * 100 + 100, 20_000))) for n in range(20)]
        await asyncio.sleep(0)
        await log.close()
    assert sum(len(append.result()) for append in appends) == 2000
    assert scan_chain(tmp_path).records == 2000


async def test_the_write_ahead_log_is_bounded(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path)
    for start in range(0, 4000, 100):
        await log.append(drafts(start, start + 100, 20_000))
    bound = (schema.CHECKPOINT_FORCED_PAGES + 500) * schema.PAGE_SIZE_BYTES
    assert os.stat(tmp_path / "log.db-wal").st_size < bound
    await log.close()


async def test_the_view_reads_and_follows_beside_the_daemon_and_without_it(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        await SqliteView.open(tmp_path)
    log = await SqliteLog.open(tmp_path)
    await log.append(drafts(0, 10))
    view = await SqliteView.open(tmp_path)
    follower = view.subscribe({A: 8})
    assert [record.offset for record in await follower.next(wait_s=0)] == [8, 9]
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(follower.next(wait_s=20))
        await log.append(drafts(10, 12))
    assert [record.offset for record in waiting.result()] == [10, 11]
    assert await view.heads() == await log.heads()
    await view.check_heads(await log.heads())
    with pytest.raises(ConflictError, match="read-only"):
        await view.append(drafts(12, 13))
    heads = await log.heads()
    await log.close()
    assert await view.heads() == heads
    await view.close()
    alone = await SqliteView.open(tmp_path)
    assert len(await alone.read(A, 0)) == 12
    await alone.close()


async def memory_run(seed: int) -> tuple[list[str], object]:
    """What a log with faults does to a fixed sequence of calls."""
    log = MemoryLog(MemoryFaults(seed=seed, fail_p=0.3, unknown_p=0.3, duplicate_p=0.3, delay_p=0.5))
    outcomes: list[str] = []

    async def produce(first: int) -> None:
        for start in range(first, first + 20, 2):
            try:
                outcomes.append(repr(await log.append(drafts(start, start + 2))))
            except UnreachableError as error:
                outcomes.append(error.what)

    async with asyncio.TaskGroup() as group:
        for producer in range(4):
            group.create_task(produce(producer * 20))
    return outcomes, await log.heads()


async def test_the_memory_log_repeats_itself_by_seed() -> None:
    first, again, other = await memory_run(1), await memory_run(1), await memory_run(2)
    assert first == again != other
    assert any("did not land" in outcome for outcome in first[0])
    assert any("unknown" in outcome for outcome in first[0])
