"""The states and counts of the projector are those of a scan, after every transaction of any history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.log.beset_run import BesetRun
from synthetic.log.busy_run import written
from synthetic.log.random_history import RandomHistory
from synthetic.log.recorder import Recorder, interleaved
from synthetic.log.scanned_books import (
    scanned_books,
    scanned_stage_counts,
    scanned_states,
    stored_stage_counts,
    stored_states,
)

from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.books import books_of
from rftd.streams.log.envelope import Draft
from rftd.streams.memory import MemoryLog


async def compare(
    drafts: Sequence[Draft], runs: Sequence[UUID], size: int, url: str = "sqlite:///:memory:"
) -> set[str]:
    """Appends `size` records at a time; after each transaction a scan must find what is stored. The states seen."""
    log, engine = MemoryLog(), open_database(url)
    projector = Projector(log, engine, clock=ManualClock())
    await projector.reset()
    seen = set[str]()
    for first in range(0, len(drafts), size):
        await log.append(drafts[first : first + size])
        await projector.catch_up()
        async with engine.connect() as connection:
            scanned = await scanned_states(connection)
            assert await stored_states(connection) == scanned, first
            assert await stored_stage_counts(connection) == await scanned_stage_counts(connection), first
            for run in runs:
                assert await books_of(connection, run) == await scanned_books(connection, run), first
        seen |= {str(row[1]) for row in scanned}
    await projector.close()
    await engine.dispose()
    return seen


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 16), events=st.integers(1, 60), size=st.sampled_from([1, 3, 20]))
def test_states_of_a_random_history_are_those_of_a_scan(seed: int, events: int, size: int) -> None:
    history = RandomHistory(seed, events)
    asyncio.run(compare(history.drafts, history.runs, size))


def test_random_histories_reach_every_state() -> None:
    seen = set[str]()
    for seed in range(16):
        history = RandomHistory(seed, 60)
        seen |= asyncio.run(compare(history.drafts, history.runs, 10))
    assert seen == {"open", "waiting", "cooling", "planned", "retired", "late"}


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 16), steps=st.integers(0, 3), mix=st.integers(0, 1 << 16))
def test_states_of_busy_and_beset_runs_are_those_of_a_scan(seed: int, steps: int, mix: int) -> None:
    experiment, recorder = written(seed, steps, ended=False)
    asyncio.run(compare(interleaved(recorder.drafts, mix), [experiment], 40))
    beset = BesetRun(Recorder(), steps=steps, seed=seed).write()
    asyncio.run(compare(interleaved(beset.recorder.drafts, mix), [beset.id], 40))


def test_states_on_postgres_are_those_of_a_scan(postgres_url: str) -> None:
    @settings(max_examples=10, deadline=None)
    @given(seed=st.integers(0, 1 << 16), events=st.integers(20, 80), size=st.sampled_from([5, 40]))
    def check(seed: int, events: int, size: int) -> None:
        history = RandomHistory(seed, events)
        asyncio.run(compare(history.drafts, history.runs, size, postgres_url))

    check()
