"""Runs whose weights travel through one mapping: to their end, without room, and with a memory that was emptied."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from synthetic.docs.package import install_packed_weights
from synthetic.until import until

from rftd.daemon.run.supervisor.run import Run
from rftd.streams.events.weights import WeightsActivated, WeightsPublished, WeightsRetired
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.sections import Synchronizer
from rftd.workers.weights import mapped_file, memory
from rftd.workers.weights.channel import Exported

E = TypeVar("E")


async def announced(log: EventLog, run: Run, kind: type[E]) -> list[E]:
    """Events of one type from the weights stream."""
    partition, offset = partition_of(topics.WEIGHTS, run.state.experiment), 0
    found: list[E] = []
    while records := await log.read(partition, offset, max_records=1000):
        offset = records[-1].offset + 1
        found += [event for event in (decode(record).event for record in records) if isinstance(event, kind)]
    return found


def memory_sync(folder: Path, **changes: object) -> Synchronizer:
    return Synchronizer(sync_style="fully_async", sync_method="memory", memory_dir=str(folder), **changes)


def check_completed(run: Run) -> None:
    spine = run.state.spine
    assert spine.status is Status.COMPLETED, (spine.code, spine.reason)


@pytest.mark.anyio
async def test_a_run_through_a_third_partys_channel_ends_and_leaves_nothing_there(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_packed_weights(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = fake_world.spec(
        tmp_path, synchronizer=Synchronizer(sync_style="fully_async", sync_method="packed"), evals=()
    )
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    check_completed(run)
    methods = {event.version: event.method for event in await announced(log, run, WeightsPublished)}
    # Of the SFT stage only the last is published: the next one begins with it.
    assert methods == {version: "checkpoint" if version in (0, 3, 8) else "packed" for version in (0, *range(3, 9))}
    assert [each for each in (Path(spec.job_dir) / "packed").iterdir() if not _counting(run, each)] == []


def _counting(run: Run, path: Path) -> bool:
    """True if the file is of weights that are not retired."""
    weights = run.state.weights
    return str(path) in {event.path for key, event in weights.published.items() if key not in weights.retired}


@pytest.mark.anyio
async def test_a_run_through_memory_ends_and_leaves_nothing_there(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    place = tmp_path / "memory"
    spec = fake_world.spec(tmp_path, synchronizer=memory_sync(place), evals=())
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    check_completed(run)
    methods = {event.version: (event.method, bool(event.host)) for event in await announced(log, run, WeightsPublished)}
    # With the last of a stage another one begins, or ends: it outlives the memory.
    durable = {0, 3, 8}
    assert methods == {
        version: ("checkpoint", False) if version in durable else ("memory", True) for version in methods
    }
    assert {4, 5, 6, 7} <= methods.keys()
    activated = await announced(log, run, WeightsActivated)
    assert {event.version for event in activated} & {4, 5, 6, 7}
    assert all(event.duration_s > 0 for event in await announced(log, run, WeightsPublished))
    assert all(0 < event.transfer_s + event.resume_s <= event.duration_s for event in activated)
    assert all(event.duration_s > 0 for event in run.state.checkpoints.values())
    assert not list(place.iterdir())
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
async def test_versions_that_are_evaluated_outlive_the_memory(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    spec = fake_world.spec(
        tmp_path, synchronizer=memory_sync(tmp_path / "memory"), eval_interval=2, eval_on_startup=True
    )
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    check_completed(run)
    methods = {event.version: event.method for event in await announced(log, run, WeightsPublished)}
    assert {version for version, method in methods.items() if method == "checkpoint"} == {0, 3, 5, 7, 8}
    assert len(run.state.spine.evaluated) == 4


@pytest.mark.anyio
async def test_without_room_weights_travel_as_files(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    blocked = tmp_path / "memory"
    blocked.write_text("a file where a folder should be")
    spec = fake_world.spec(tmp_path, synchronizer=memory_sync(blocked))
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    check_completed(run)
    assert {event.method for event in await announced(log, run, WeightsPublished)} == {"checkpoint"}


@pytest.mark.anyio
@pytest.mark.parametrize("killed", [False, True], ids=["running", "trainer-killed"])
async def test_a_memory_that_was_emptied_is_filled_again(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, killed: bool
) -> None:
    """Explorers wait for weights that are gone; the trainer, running or taken up, publishes what it has."""
    place = tmp_path / "memory"
    sync = Synchronizer(sync_style="fixed", sync_interval=2, sync_offset=1, sync_method="memory", memory_dir=str(place))
    spec = fake_world.spec(tmp_path, synchronizer=sync, policy=fake_world.fixed(2, 1)["policy"], evals=())
    executor = fake_world.executor(log, clock, ids)
    run = await fake_world.run(log, spec, clock, ids, executor)
    emptied = asyncio.Event()

    async def empty() -> None:
        await until(lambda: any(event.method == "memory" for event in run.state.weights.published.values()))
        if killed:
            for handle in executor.handles:
                handle.kill()
        # Renamed first: the trainer goes on publishing into a folder of that name while this one is emptied.
        place.rename(aside := tmp_path / "emptied")
        shutil.rmtree(aside, ignore_errors=True)
        emptied.set()

    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        emptying = tasks.create_task(empty())
        await run.drive()
        emptying.cancel()
    assert emptied.is_set()
    check_completed(run)
    retired = {event.reason for event in await announced(log, run, WeightsRetired)}
    assert retired <= {"the memory that held them is gone", "newer versions exist", "another generation differs"}
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
async def test_a_worker_that_cannot_see_the_memory_ends_and_says_why(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker sees another memory, as one on another machine does."""

    def not_here(path: Path) -> int:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(mapped_file, "open_to_read", not_here)
    publish = memory.MemoryChannel.publish

    def from_afar(*arguments, **named) -> Exported:
        return msgspec.structs.replace(publish(*arguments, **named), host="far.example")

    monkeypatch.setattr(memory.MemoryChannel, "publish", from_afar)
    spec = fake_world.spec(tmp_path, synchronizer=memory_sync(tmp_path / "memory"), evals=())
    run = await fake_world.run(log, spec, clock, ids)

    def refused() -> bool:
        return any(gone.code == "RFTD-WRK-010" for gone in run.state.roster.gone.values())

    async with asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(run.drive())
        await until(refused)
        driving.cancel()
    reason = next(gone.reason for gone in run.state.roster.gone.values() if gone.code)
    assert "memory of far.example" in reason
    assert "sync_method: checkpoint" in reason
