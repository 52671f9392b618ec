"""A run to its end while a stranger writes into every topic."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text
from synthetic.log.garbage import garbage

from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.ids import NAMESPACE, derive
from rftd.ops.logs import logger
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest
from rftd.streams.events import experiment as life
from rftd.streams.events.worker import RecordDeadLettered
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer, decode_as
from rftd.streams.log.deadletters import DeadLetterBox
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import as_refs
from rftd.streams.log.topics import TRUTH, Partition


@pytest.mark.anyio
async def test_garbage_in_every_topic_stops_nothing(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    experiment = derive(NAMESPACE, "garbage run")
    before = garbage(experiment, ids, clock)
    await log.append(before)
    writer = Writer(source="test", clock=clock, ids=ids)
    spec = fake_world.spec(tmp_path)
    await log.append([writer.draft(life.ExperimentSubmitted(spec=spec), experiment=experiment)])
    await log.append(garbage(experiment, ids, clock))
    accepted = life.ExperimentAccepted(start=as_refs(await log.heads()))
    await log.append([writer.draft(accepted, experiment=experiment)])

    async def project(times: int) -> None:
        """Projects the log, as a daemon does that is started anew each time."""
        for _ in range(times):
            letters = DeadLetterBox(log, writer, clock=clock)
            await Projector(log, engine, clock=clock, max_records=64, report=letters.report).catch_up()

    registry = Registry(log)
    run = Run(
        log, experiment, fake_world.executor(log, clock, ids), owner=ids.new(), clock=clock, ids=ids, logger=logger()
    )
    written = [*before, *before]

    async def disturb() -> None:
        while True:
            written.extend(more := garbage(experiment, ids, clock))
            await log.append(more)
            await registry.catch_up()
            await asyncio.sleep(0.2)

    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        disturbing = tasks.create_task(disturb())
        await run.drive()
        disturbing.cancel()
    assert run.state.spine.status is Status.COMPLETED, (run.state.spine.code, run.state.spine.reason)
    await registry.catch_up()
    assert registry.entries[experiment].status is Status.COMPLETED
    await project(3)
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    expected = Counter(str(draft.partition) for draft in written if draft.partition in TRUTH)
    assert Counter(letter.place.partition("@")[0] for letter in report.dead_letters) == expected
    assert all(letter.pointed_at for letter in report.dead_letters)
    home = Partition(topics.DEADLETTERS, 0)
    pointers = [
        decode_as(record, RecordDeadLettered)
        for record in await _all(log, home)
        if b"record.dead_lettered" in record.head and b"stranger" not in record.head
    ]
    places = Counter((each.stream, each.partition, each.offset) for each in pointers)
    assert len(places) == len(report.dead_letters)
    assert set(places.values()) == {1}
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT count(*) FROM dead_letters"))).scalar_one()
    assert rows == len(places)
    again = open_database("sqlite:///:memory:")
    await Projector(log, again, clock=clock).catch_up()
    assert (await digest(again)).total == (await digest(engine)).total, "rebuilt equals live"
    for each in (engine, again):
        await each.dispose()
    await registry.close()


async def _all(log: EventLog, partition: Partition) -> list:
    records, offset = [], 0
    while found := await log.read(partition, offset):
        records += found
        offset = found[-1].offset + 1
    return records
