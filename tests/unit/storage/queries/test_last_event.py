"""The time of an experiment's newest event, on both kinds of database."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import SystemClock
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.last_event import last_event_ns
from rftd.streams.log.codec import decode_head
from rftd.streams.memory import MemoryLog


@pytest.mark.anyio
async def test_it_is_that_of_the_last_record_but_for_those_without_a_time_in_the_tables(
    either: AsyncEngine, run: SyntheticRun
) -> None:
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    projector = Projector(log, either, clock=SystemClock())
    await projector.catch_up()
    await projector.close()
    times_ns = [head.time_ns for record in run.recorder.records if (head := decode_head(record)).experiment == run.id]
    async with either.connect() as connection:
        newest_ns = await last_event_ns(connection, run.id)
        assert await last_event_ns(connection, UUID(int=3)) == 0
    assert sorted(times_ns)[-5] <= newest_ns <= max(times_ns)
