"""A run pauses once its tokens are spent, and goes on for as many again; who looks at it is in the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.until import until

from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.orders import Request
from rftd.ops.ids import Ids
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.spent import spent_tokens
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed, ExperimentSeen
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spending import BUDGET, UNSEEN
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.shared_history import fold_until
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.sections import Budgets

BRIEF_DAYS = 0.24 / 86_400
"""So short that a look is to be written after ten milliseconds."""


async def life_of(log: EventLog, experiment: Any) -> list[Any]:
    records = await log.read(partition_of(topics.EXPERIMENTS, experiment), 0, max_records=10_000)
    return [decode(record).event for record in records]


async def tokens_by_tables(folder: Path, log: EventLog, clock: Any, experiment: UUID) -> int:
    """The tokens that the experiment has spent, as the tables have them."""
    engine = open_database(sqlite_url(folder / "tables.db"))
    projector = Projector(log, engine, clock=clock)
    try:
        await projector.catch_up()
        async with engine.connect() as connection:
            return await spent_tokens(connection, experiment, row_stages=[0])
    finally:
        await projector.close()
        await engine.dispose()


@pytest.mark.anyio
@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
async def test_a_run_that_has_spent_its_tokens(
    tmp_path: Path, log: EventLog, clock: Any, ids: Ids, fake_world: Any
) -> None:
    spec = msgspec.structs.replace(fake_world.spec(tmp_path), limits=Budgets(tokens=40))
    run = await fake_world.run(log, spec, clock, ids)
    spine = run.state.spine
    pauses = 0
    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.drive())
        while not spine.ended:
            await until(lambda: spine.ended or spine.status is Status.PAUSED)
            if spine.status is Status.PAUSED:
                assert (spine.cause, "tokens spent" in spine.reason) == (BUDGET, True)
                pauses += 1
                assert spine.spending.granted == pauses
                await run.command(ExperimentResumed(by="me"), Request(ids.new()))
    assert pauses > 1
    assert spine.status is Status.COMPLETED
    paused = [event for event in await life_of(log, run.state.experiment) if isinstance(event, ExperimentPaused)]
    assert [event.cause for event in paused] == [BUDGET] * pauses
    again = RunState(run.state.experiment)
    heads = await log.heads()
    await fold_until(log, again, again.experiment, {place: heads[place].next_offset for place in heads})
    assert again.spine.spending == spine.spending, "a daemon that reads the log anew finds the same spent"
    assert (again.groups.tokens, again.spine.spending.granted) == (run.state.groups.tokens, pauses + 1)
    assert (await fake_world.verified(log)).clean
    registry = Registry(log)
    await registry.catch_up()
    entry = registry.entries[run.state.experiment]
    listed = entry.spine.spending
    assert (listed.ran_ns, listed.seen_ns) == (spine.spending.ran_ns, spine.spending.seen_ns)
    tokens = await tokens_by_tables(tmp_path, log, clock, entry.id)
    assert tokens == run.state.groups.tokens + spine.spending.row_tokens
    await registry.close()


@pytest.mark.anyio
@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
async def test_who_looks_is_in_the_log(tmp_path: Path, log: EventLog, clock: Any, ids: Ids, fake_world: Any) -> None:
    spec = msgspec.structs.replace(fake_world.spec(tmp_path), limits=Budgets(unseen_days=BRIEF_DAYS))
    run = await fake_world.run(log, spec, clock, ids)
    spine = run.state.spine

    def stands() -> bool:
        run.looked("somebody")
        return spine.ended or spine.status is Status.PAUSED

    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.drive())
        while not spine.ended:
            await until(stands)
            if spine.status is Status.PAUSED:
                assert spine.cause == UNSEEN
                await run.command(ExperimentResumed(by="me"), Request(ids.new()))
    seen = [event for event in await life_of(log, run.state.experiment) if isinstance(event, ExperimentSeen)]
    assert {event.by for event in seen} == {"somebody"}
