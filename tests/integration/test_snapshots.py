"""A run that is taken up again goes on from its newest fold, and from the log where the fold cannot be believed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs
from synthetic.until import until

from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.storage.files.resume import snapshots_of
from rftd.storage.files.snapshots import SnapshotFolder
from rftd.streams.folds.run_state import RunParts
from rftd.streams.folds.snapshot import Snapshot, pack, unpack
from rftd.streams.folds.spine import Status
from rftd.streams.log.log import EventLog


async def begun(log: EventLog, spec, world, clock: SystemClock, ids: SystemIds) -> UUID:
    """Submitted, run for a while, and drained."""
    experiment = await world.submitted(log, spec, clock, ids)
    run = Run(log, experiment, world.executor(log, clock, ids), owner=ids.new(), clock=clock, ids=ids, logger=logger())
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        driving = tasks.create_task(run.drive())
        await until(lambda: run.state.spine.furthest >= 4 or driving.done())
        await run.drain()
    assert not run.state.spine.status.ended
    return experiment


async def ended(log: EventLog, experiment: UUID, world, clock, ids) -> tuple[Run, list[tuple[str, str]]]:
    """Taken up again and driven to its end; the run, and what was logged of snapshots."""
    run = Run(log, experiment, world.executor(log, clock, ids), owner=ids.new(), clock=clock, ids=ids, logger=logger())
    with capture_logs() as lines:
        async with asyncio.timeout(60):
            await run.drive()
    assert run.state.spine.status is Status.COMPLETED, (run.state.spine.code, run.state.spine.reason)
    report = await world.verified(log)
    assert report.clean, report.findings
    told = [(line["event"], line.get("reason", "")) for line in lines if line["event"].startswith("snapshot.")]
    return run, told


@pytest.mark.anyio
async def test_a_run_goes_on_from_its_snapshot(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    spec = fake_world.spec(tmp_path)
    experiment = await begun(log, spec, fake_world, clock, ids)
    assert 1 <= len(snapshots_of(spec).newest_first()) <= 2
    run, told = await ended(log, experiment, fake_world, clock, ids)
    # The daemon, its trainer and its explorer.
    assert len(told) >= 3, told
    assert {event for event, _ in told} == {"snapshot.used"}, told
    books = run.state.replay_buffer.counts()
    assert books["balance"] == 0
    assert books["planned"] == 5 * 16


def flipped(folder: SnapshotFolder, path: Path) -> str:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return "sha256"


def of_another_version(folder: SnapshotFolder, path: Path) -> str:
    data = bytearray(path.read_bytes())
    data[12] ^= 1
    path.write_bytes(data)
    return "of version"


def cut_off(folder: SnapshotFolder, path: Path) -> str:
    path.write_bytes(path.read_bytes()[:20])
    return "cut off"


def of_another_experiment(folder: SnapshotFolder, path: Path) -> str:
    snapshot = unpack(path.read_bytes(), Snapshot[RunParts])
    snapshot.experiment = UUID(int=7)
    path.write_bytes(pack(snapshot))
    return str(UUID(int=7))


def of_a_newer_log(folder: SnapshotFolder, path: Path) -> str:
    snapshot = unpack(path.read_bytes(), Snapshot[RunParts])
    snapshot.marks = tuple(
        msgspec.structs.replace(mark, next_offset=mark.next_offset + 100_000) for mark in snapshot.marks
    )
    path.write_bytes(pack(snapshot))
    return "gone"


def of_another_log(folder: SnapshotFolder, path: Path) -> str:
    snapshot = unpack(path.read_bytes(), Snapshot[RunParts])
    snapshot.marks = tuple(msgspec.structs.replace(mark, chain=bytes(len(mark.chain))) for mark in snapshot.marks)
    path.write_bytes(pack(snapshot))
    return "not the record"


SPOILERS = (flipped, of_another_version, cut_off, of_another_experiment, of_a_newer_log, of_another_log)


@pytest.mark.anyio
@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
async def test_what_cannot_be_believed_is_left_alone(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, spoil
) -> None:
    spec = fake_world.spec(tmp_path)
    experiment = await begun(log, spec, fake_world, clock, ids)
    folder = snapshots_of(spec)
    newest, *others = folder.newest_first()
    for path in others:
        path.unlink()
    reason = spoil(folder, newest)
    _, told = await ended(log, experiment, fake_world, clock, ids)
    assert told[0][0] == "snapshot.ignored", told
    assert reason in told[0][1], told
    remembers = spoil in (of_a_newer_log, of_another_log, of_another_experiment, of_another_version)
    assert [path.name for path in folder.folder.glob("*.aside")] == [f"{newest.name}.aside"] * remembers


@pytest.mark.anyio
async def test_the_one_before_takes_the_place_of_a_damaged_one(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    spec = fake_world.spec(tmp_path)
    experiment = await begun(log, spec, fake_world, clock, ids)
    folder = snapshots_of(spec)
    newest = folder.newest_first()[0]
    newest.with_name(f"{10**15:016d}.fold").write_bytes(b"garbage")
    _, told = await ended(log, experiment, fake_world, clock, ids)
    assert [event for event, _ in told[:2]] == ["snapshot.ignored", "snapshot.used"], told
    assert not any(path.name.startswith("1") for path in folder.newest_first())


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "snapshots")
    for records in (5, 1_000, 70, 2_000_000):
        folder.write(b"x", records)
    assert [int(path.stem) for path in folder.newest_first()] == [2_000_000, 1_000]
    assert len(list(folder.folder.iterdir())) == 2
