"""A record whose event is in its partition twice changes nothing the second time: whatever the batches and restarts."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.lag import lag_records
from synthetic.log.recorder import Recorder
from synthetic.log.repeating_log import RepeatingLog
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database
from rftd.storage.database.schema import read_filled
from rftd.storage.projector.projections.progress import KINDS
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest
from rftd.streams.events import experiment
from rftd.streams.events.registry import Event
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import TRUTH

pytestmark = pytest.mark.anyio


async def tables_of(drafts: list[Draft], engine: AsyncEngine, *, max_records: int, cut: int) -> dict[str, str]:
    """Digests of the tables, filled in two lives of a projector."""
    log = RepeatingLog()
    for part in (drafts[:cut], drafts[cut:]):
        await log.append(part)
        projector = Projector(log, engine, clock=ManualClock(), max_records=max_records)
        await projector.catch_up()
        await projector.close()
    tables = dict((await digest(engine)).tables)
    del tables["positions"]
    return tables


@pytest.mark.parametrize("max_records", [1, 7, 2000])
async def test_no_event_counts_twice(run: SyntheticRun, either: AsyncEngine, max_records: int) -> None:
    """Every record again at the end, and once more in another order; a second life begins among them."""
    drafts = run.recorder.drafts
    plain = open_database("sqlite:///:memory:")
    once = await tables_of(drafts, plain, max_records=1024, cut=len(drafts))
    await plain.dispose()
    shuffled = [drafts[place] for place in np.random.default_rng(max_records).permutation(len(drafts))]
    repeated = [*drafts, *drafts, *shuffled]
    cut = int(len(repeated) * 0.7)
    assert await tables_of(repeated, either, max_records=max_records, cut=cut) == once


async def test_who_asks_is_told_what_came_again_and_how_long_tables_took_to_fill(
    run: SyntheticRun, either: AsyncEngine
) -> None:
    """Once of tables that are filled from a log that was there; never of those that grew with it."""
    log, clock = RepeatingLog(), ManualClock()
    told: list[tuple[float, dict[str, int]]] = []
    grown = open_database("sqlite:///:memory:")
    projector = Projector(log, grown, clock=clock)
    await projector.open()
    await log.append(run.recorder.drafts)
    await projector.catch_up()
    async with grown.connect() as connection:
        assert await read_filled(connection) is None
    await projector.close()
    await grown.dispose()
    async with asyncio.timeout(30):
        await log.append(run.recorder.drafts)
        projector = Projector(log, either, clock=clock, handled=lambda s, repeated: told.append((s, dict(repeated))))
        await projector.open()
        clock.advance(2.5)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(projector.run())
            for partition, head in (await log.heads()).items():
                if partition in TRUTH and head.next_offset:
                    await projector.wait_for(partition, head.next_offset - 1, timeout_s=None)
            following.cancel()
    assert sum(sum(repeated.values()) for _, repeated in told) == projector.repeated_records > 0
    streams = {draft.partition.stream for draft in run.recorder.drafts} & {partition.stream for partition in TRUTH}
    assert {stream for _, repeated in told for stream in repeated} == streams, "also those without a repeated record"
    async with either.connect() as connection:
        assert await read_filled(connection) == 2.5


async def test_the_first_of_two_experiences_stays(run: SyntheticRun, either: AsyncEngine) -> None:
    """The second execution of a rollout has the same id and other contents: a later life reads it."""
    produced = [draft for draft in run.recorder.drafts if b"experience.produced" in draft.head]
    first = produced[0]
    other = next(draft for draft in produced[4:] if draft.partition == first.partition)  # of another group
    again = Draft(first.partition, first.id, first.head, other.value)
    drafts = [*run.recorder.drafts, again]
    plain = open_database("sqlite:///:memory:")
    once = await tables_of(run.recorder.drafts, plain, max_records=1024, cut=0)
    await plain.dispose()
    assert await tables_of(drafts, either, max_records=3, cut=len(drafts) - 1) == once


async def test_a_command_that_comes_again_does_not_turn_a_state_back(either: AsyncEngine) -> None:
    recorder = Recorder()
    id = recorder.ids.new()
    recorder.write(experiment.ExperimentPaused(reason="lunch"), id, role="controller")
    recorder.write(experiment.ExperimentWarned(text="hot"), id, role="controller")
    recorder.write(experiment.ExperimentResumed(), id, role="controller")
    fence, *commands = recorder.drafts
    await tables_of([fence, *commands, *commands[:2]], either, max_records=1024, cut=4)
    async with either.connect() as connection:
        assert (await connection.execute(text("SELECT state FROM experiments"))).scalars().all() == ["running"]
        assert await connection.scalar(text("SELECT count(*) FROM warnings")) == 1


def test_every_kind_that_needs_it_counts_once(run: SyntheticRun) -> None:
    """Those of the run that win over earlier ones are in the list, so the test above sees them."""
    seen: set[type[Event]] = {type(decode(record).event) for record in run.recorder.records}
    assert len(seen & KINDS) >= 4


async def test_repeats_are_counted(run: SyntheticRun, engine: AsyncEngine) -> None:
    log = RepeatingLog()
    await log.append([*run.recorder.drafts, *run.recorder.drafts])
    projector = Projector(log, engine, clock=ManualClock())
    await projector.catch_up()
    assert projector.repeated_records > 0
    assert await lag_records(log, projector) == 0
