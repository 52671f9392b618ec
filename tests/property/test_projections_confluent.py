"""Rule 6 on the tables: no interleaving, batch size, restart or cut changes them, and no kind of database."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.log.busy_run import fold, written
from synthetic.log.rebuilds import rebuilt, tape_of
from synthetic.log.recorder import interleaved

from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import Digests, digest
from rftd.storage.queries.batches import list_batches
from rftd.storage.queries.books import books_of
from rftd.streams.log.envelope import Draft
from rftd.streams.log.shared_history import plan_offsets
from rftd.streams.memory import MemoryLog


async def project(drafts: list[Draft], cuts: list[int], max_records: int, url: str = "sqlite:///:memory:") -> Digests:
    """Appends in pieces; after each a new projector catches up."""
    log, engine = MemoryLog(), open_database(url)
    former = Projector(log, engine, clock=ManualClock())
    await former.reset()
    await former.close()
    for first, last in zip([0, *cuts], [*cuts, len(drafts)], strict=True):
        await log.append(drafts[first:last])
        projector = Projector(log, engine, clock=ManualClock(), max_records=max_records)
        await projector.catch_up()
        await projector.close()
    seen = await digest(engine)
    await engine.dispose()
    return seen


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    steps=st.integers(0, 3),
    mix=st.integers(0, 1 << 16),
    pieces=st.integers(0, 6),
    max_records=st.sampled_from([1, 5, 64, 1024]),
)
def test_tables_do_not_depend_on_how_the_log_arrived(
    seed: int, steps: int, mix: int, pieces: int, max_records: int
) -> None:
    drafts = tape_of(seed, steps)
    cuts = sorted(np.random.default_rng(mix).integers(0, len(drafts) + 1, pieces).tolist())

    async def compare() -> tuple[Digests, Digests]:
        return await project(drafts, [], 1024), await project(interleaved(drafts, mix), cuts, max_records)

    straight, mixed = asyncio.run(compare())
    assert mixed.tables == straight.tables
    assert mixed.positions == straight.positions


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 16))
def test_rebuilt_tables_equal_the_live_ones(seed: int) -> None:
    report = asyncio.run(rebuilt(seed))
    assert report.different == ()
    assert report.rebuilt == report.live


def test_a_row_that_is_missing_is_found() -> None:
    assert asyncio.run(rebuilt(7, spoil=True)).different == ("batches",)


def test_tables_on_postgres_equal_those_on_sqlite(postgres_url: str) -> None:
    @settings(max_examples=10, deadline=None)
    @given(
        seed=st.integers(0, 1 << 16),
        steps=st.integers(0, 3),
        mix=st.integers(0, 1 << 16),
        pieces=st.integers(0, 3),
        max_records=st.sampled_from([3, 64, 1024]),
    )
    def check(seed: int, steps: int, mix: int, pieces: int, max_records: int) -> None:
        drafts = tape_of(seed, steps)
        cuts = sorted(np.random.default_rng(mix).integers(0, len(drafts) + 1, pieces).tolist())

        async def compare() -> tuple[Digests, Digests]:
            mixed = interleaved(drafts, mix)
            return await project(drafts, [], 1024), await project(mixed, cuts, max_records, postgres_url)

        embedded, served = asyncio.run(compare())
        assert served == embedded

    check()


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 16), steps=st.integers(0, 3))
def test_the_books_of_the_tables_are_those_of_the_fold(seed: int, steps: int) -> None:
    """Also where a batch is given up while somebody executes it: what comes first on the spine counts."""
    experiment, recorder = written(seed, steps, ended=False)
    state = fold(experiment, recorder.records)

    async def read() -> tuple[dict[str, int], set[int]]:
        log, engine = MemoryLog(), open_database("sqlite:///:memory:")
        await log.append(recorder.drafts)
        projector = Projector(log, engine, clock=ManualClock())
        await projector.catch_up()
        async with engine.connect() as connection:
            books = await books_of(connection, experiment)
            rows = await list_batches(connection, experiment)
        plans = await plan_offsets(log, experiment, first=1)
        await projector.close()
        await engine.dispose()
        counts = {
            "produced": books.produced,
            "waiting": books.waiting,
            "cooling": books.cooling,
            "planned": books.planned,
            "retired": sum(books.retired.values()),
            "balance": books.balance,
        }
        trained = {row.step for row in rows if row.state == "trained"}
        assert trained <= set(plans), "what a fork from such a step needs"
        return counts, trained

    counts, trained = asyncio.run(read())
    assert counts == state.replay_buffer.counts()
    assert max(trained, default=0) == state.spine.furthest
