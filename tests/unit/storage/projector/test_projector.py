"""The projector: exactly once over restarts, failures, rivals and bad records."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.lag import lag_records
from synthetic.log.long_history import EXPERIMENT, LongHistory
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import until

from rftd.ops.clock import ManualClock, SystemClock
from rftd.ops.errors import ConflictError, LogLossError, WaitTimeoutError
from rftd.ops.faults import InjectedFault
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest
from rftd.streams.events import worker
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.catalogue import UnknownVersionError
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.log import SqliteLog

pytestmark = pytest.mark.anyio

PLANS = 80


async def log_of(drafts: list[Draft]) -> MemoryLog:
    log = MemoryLog()
    for first in range(0, len(drafts), 1000):
        await log.append(drafts[first : first + 1000])
    return log


async def digest_of(drafts: list[Draft]) -> str:
    """The digest of a fresh database that saw the drafts in one go."""
    engine = open_database("sqlite:///:memory:")
    await Projector(await log_of(drafts), engine, clock=ManualClock()).catch_up()
    total = (await digest(engine)).total
    await engine.dispose()
    return total


@pytest.mark.parametrize("max_records", [1, 7, 1000])
async def test_batch_size_changes_nothing(run: SyntheticRun, engine: AsyncEngine, max_records: int) -> None:
    log = await log_of(run.recorder.drafts)
    projector = Projector(log, engine, clock=ManualClock(), max_records=max_records)
    assert await projector.catch_up() is None
    assert await lag_records(log, projector) == 0
    assert projector.applied_records == len(run.recorder.drafts) - 1
    assert projector.void_records == 1, "the zombie's plan"
    assert (await digest(engine)).total == await digest_of(run.recorder.drafts)


async def test_restart_goes_on_where_it_stopped(run: SyntheticRun, engine: AsyncEngine) -> None:
    log = MemoryLog()
    applied = 0
    for first in range(0, len(run.recorder.drafts), 11):
        await log.append(run.recorder.drafts[first : first + 11])
        projector = Projector(log, engine, clock=ManualClock())
        await projector.catch_up()
        applied += projector.applied_records
    assert applied == len(run.recorder.drafts) - 1
    assert (await digest(engine)).total == await digest_of(run.recorder.drafts)


async def test_run_follows_appends_and_reads_can_wait_for_them(run: SyntheticRun, engine: AsyncEngine) -> None:
    log = MemoryLog()
    projector = Projector(log, engine, clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        for first in range(0, len(run.recorder.drafts), 40):
            positions = await log.append(run.recorder.drafts[first : first + 40])
            for position in positions:
                await projector.wait_for(position.partition, position.offset, timeout_s=240)
        await projector.catch_up()
        with pytest.raises(WaitTimeoutError, match="is not in the tables"):
            await projector.wait_for(Partition(topics.WORKERS, 0), 10_000, timeout_s=0.01)
        following.cancel()
    assert (await digest(engine)).total == await digest_of(run.recorder.drafts)


class StoppedClock(ManualClock):
    """A pause on it lasts until it is cut short."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, delay_s: float) -> None:
        self.pauses.append(delay_s)
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("records", "max_records", "pause_s"), [(3, 1000, 0.15), (300, 1000, 0.15), (300, 300, None), (3, 1, None)]
)
async def test_records_gather_after_a_batch_unless_somebody_waits(
    engine: AsyncEngine, records: int, max_records: int, pause_s: float | None
) -> None:
    """No pause while more is there than one transaction takes."""
    recorder, clock, place = Recorder(), StoppedClock(), Partition(topics.WORKERS, 0)
    for _ in range(records + 1):
        recorder.write(worker.WorkerStopped(worker=(id := recorder.ids.new()), role="explorer", slot=0), None, key=id)
    log = await log_of(recorder.drafts[:-1])
    projector = Projector(log, engine, clock=clock, max_records=max_records)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        await until(lambda: projector.positions.get(place) == records and (pause_s is None or clock.pauses))
        assert clock.pauses == ([] if pause_s is None else [pause_s])
        await log.append(recorder.drafts[-1:])
        await projector.wait_for(place, records, timeout_s=240)
        following.cancel()


async def test_plans_that_gathered_are_written_a_few_at_a_time(engine: AsyncEngine) -> None:
    """Each is a row for each of its items, and the memory of the largest transaction stays with the process."""
    recorder = Recorder()
    for decoded in LongHistory().steps(PLANS):
        if isinstance(plan := decoded.event, BatchPlanned):
            recorder.write(msgspec.structs.replace(plan, experiences=plan.experiences * 4), EXPERIMENT)
    at_once: list[int] = []
    before = 0

    def point(passing: str) -> None:
        nonlocal before
        if passing == "projector.after_commit":
            at_once.append(sum(projector.positions.values()) - before)
            before = sum(projector.positions.values())

    log = await log_of(recorder.drafts)
    projector = Projector(log, engine, clock=ManualClock(), point=point)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        await projector.wait_for(partition_of(topics.EXPERIMENTS, EXPERIMENT), PLANS - 1, timeout_s=240)
        following.cancel()
    assert len(at_once) > 4
    assert max(at_once) <= PLANS // 4
    assert (await digest(engine)).total == await digest_of(recorder.drafts)


@pytest.mark.parametrize("name", ["projector.before_commit", "projector.after_commit"])
async def test_failures_at_a_commit_are_waited_out(run: SyntheticRun, engine: AsyncEngine, name: str) -> None:
    passed = 0

    def point(passing: str) -> None:
        nonlocal passed
        if passing == name:
            passed += 1
            if passed % 3 == 1:
                raise InjectedFault("injected")

    log = await log_of(run.recorder.drafts)
    projector = Projector(log, engine, clock=ManualClock(), max_records=9, point=point)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        for partition, mark in (await log.heads()).items():
            await projector.wait_for(partition, mark.next_offset - 1, timeout_s=240)
        following.cancel()
    assert passed > 5
    assert (await digest(engine)).total == await digest_of(run.recorder.drafts)


KILLED = """
import asyncio, sys
from pathlib import Path
from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.sqlite.log import SqliteLog

async def main(folder):
    log = await SqliteLog.open(folder / "log")
    await Projector(log, open_database(sqlite_url(folder / "state.db")), clock=SystemClock(), max_records=4).catch_up()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("armed", ["projector.before_commit=kill@1", "projector.after_commit=kill@9"])
async def test_kill_9_at_a_commit_loses_and_repeats_nothing(
    run: SyntheticRun, engine: AsyncEngine, tmp_path: Path, armed: str
) -> None:
    log = await SqliteLog.open(tmp_path / "log")
    await log.append(run.recorder.drafts)
    await log.close()
    environment = {**os.environ, "RFTD_FAULTS": armed}
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-P", "-c", KILLED, str(tmp_path)], env=environment, timeout=240, check=False
    )
    assert killed.returncode == -9
    log = await SqliteLog.open(tmp_path / "log")
    await Projector(log, engine, clock=ManualClock()).catch_up()
    assert (await digest(engine)).total == await digest_of(run.recorder.drafts)
    await log.close()


async def test_a_lost_tail_is_refused_with_its_position(run: SyntheticRun, engine: AsyncEngine) -> None:
    await Projector(await log_of(run.recorder.drafts), engine, clock=ManualClock()).catch_up()
    shorter = await log_of(run.recorder.drafts[:-1])
    with pytest.raises(LogLossError, match=r"rftd\.workers"):
        await Projector(shorter, engine, clock=ManualClock()).catch_up()
    with pytest.raises(LogLossError):
        await Projector(shorter, engine, clock=ManualClock()).run()


async def test_catching_up_beside_a_run_that_ends_does_not_hang(run: SyntheticRun, engine: AsyncEngine) -> None:
    log = await log_of(run.recorder.drafts)
    projector = Projector(log, engine, clock=SystemClock(), max_records=5)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        await asyncio.sleep(0)
        waiting = group.create_task(projector.catch_up())
        await asyncio.sleep(0)
        following.cancel()
        await waiting
    assert await lag_records(log, projector) == 0


async def test_of_two_projectors_on_one_database_one_gives_way(run: SyntheticRun, engine: AsyncEngine) -> None:
    log = await log_of(run.recorder.drafts)
    one, two = (Projector(log, engine, clock=ManualClock()) for _ in range(2))
    await one.open()
    await two.open()
    await one.catch_up()
    with pytest.raises(ConflictError, match="another process"):
        await two.catch_up()
    await two.catch_up()
    assert (await digest(engine)).total == await digest_of(run.recorder.drafts)


async def test_bad_records_become_dead_letters_and_others_flow(engine: AsyncEngine) -> None:
    recorder = Recorder()
    good, other, huge = (recorder.ids.new() for _ in range(3))

    def started(id: object, pid: int) -> worker.WorkerStarted:
        return worker.WorkerStarted(worker=id, role="explorer", slot=0, host="h", pid=pid, process_start_s=0.0)  # type: ignore[arg-type]

    recorder.write(started(good, 1), None, key=good)
    place = Partition(topics.WORKERS, 0)
    recorder.put(Draft(place, recorder.ids.new(), b"\xff\xff", b"not ours"))
    head = recorder.drafts[0].head
    recorder.put(Draft(place, recorder.ids.new(), head, b"\x80"))
    recorder.put(Draft(place, recorder.ids.new(), head.replace(b"worker.started", b"worker.startex"), b"\x80"))
    draft = Writer(source="test", clock=recorder.clock, ids=recorder.ids).draft(
        started(huge, 1 << 39), experiment=None, key=huge
    )
    packed = [msgspec.msgpack.encode(number) for number in (1 << 39, 1 << 63)]
    recorder.put(msgspec.structs.replace(draft, value=draft.value.replace(*packed)))
    recorder.write(started(other, 2), None, key=other)
    projector = Projector(await log_of(recorder.drafts), engine, clock=ManualClock())
    await projector.catch_up()
    assert (projector.applied_records, projector.dead_records) == (2, 4)
    async with engine.connect() as connection:
        dead = (await connection.execute(text('SELECT "offset", reason FROM dead_letters ORDER BY "offset"'))).all()
        pids = (await connection.execute(text("SELECT pid FROM workers ORDER BY pid"))).scalars().all()
    assert [offset for offset, _ in dead] == [1, 2, 3, 4]
    assert "unreadable envelope" in dead[0][1]
    assert "startex" in dead[2][1]
    assert list(pids) == [1, 2]


async def test_a_newer_version_stops_the_projector(engine: AsyncEngine) -> None:
    recorder = Recorder()
    id = recorder.ids.new()
    stopped = worker.WorkerStopped(worker=id, role="explorer", slot=0)
    recorder.write(stopped, None, key=id)
    head = recorder.drafts[0].head
    at = head.index(b"worker.stopped") + len(b"worker.stopped")
    assert head[at] == 1, "the version follows the type"
    recorder.put(Draft(recorder.drafts[0].partition, recorder.ids.new(), head[:at] + b"\x02" + head[at + 1 :], b"\x80"))
    projector = Projector(await log_of(recorder.drafts), engine, clock=ManualClock(), max_records=1)
    with pytest.raises(UnknownVersionError, match="newer"):
        await projector.run()
    assert projector.positions == {Partition(topics.WORKERS, 0): 1}
