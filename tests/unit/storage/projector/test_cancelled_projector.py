"""A projector that is cancelled ends, whatever the database was doing: a daemon that was told to stop stops."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiosqlite import Connection
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import until

from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest
from rftd.streams.log.topics import TRUTH
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio
ENDS_WITHIN_S = 20.0
STRIKES = 24


class Striker:
    """Cancels the task that is about to send the statement with one number, or to visit a file's thread so often."""

    def __init__(self, engine: AsyncEngine, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = at
        if engine.dialect.name == "postgresql":
            event.listen(engine.sync_engine, "before_cursor_execute", self._sent)
            return
        execute = Connection._execute

        async def struck(driver: Connection, *work: Any, **named: Any) -> object:
            self._sent()
            return await execute(driver, *work, **named)  # type: ignore[no-untyped-call]

        monkeypatch.setattr(Connection, "_execute", struck)

    def _sent(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(url)
    try:
        yield engine
    finally:
        await engine.dispose()


async def struck(url: str, log: MemoryLog, at: int) -> bool:
    """Follows the log and is cancelled at a statement; False if there were fewer."""
    async with opened(url) as engine:
        with pytest.MonkeyPatch.context() as monkeypatch:
            return await _struck(Striker(engine, at, monkeypatch), engine, log, at)


async def _struck(striker: Striker, engine: AsyncEngine, log: MemoryLog, at: int) -> bool:
    projector = Projector(log, engine, clock=SystemClock(), max_records=100)
    following = asyncio.ensure_future(projector.run())
    await until(lambda: following.done() or striker.left <= 0 or caught_up(projector, log))
    if striker.left > 0:
        following.cancel()
    done, _ = await asyncio.wait({following}, timeout=ENDS_WITHIN_S)
    assert done, f"it goes on after it was cancelled at statement {at}"
    assert following.cancelled(), f"it ended with {following.exception()!r} at statement {at}"
    return striker.left <= 0


async def caught_up_once(log: MemoryLog, engine: AsyncEngine) -> None:
    projector = Projector(log, engine, clock=SystemClock())
    await projector.catch_up()
    await projector.close()


def caught_up(projector: Projector, log: MemoryLog) -> bool:
    heads = log.tail.heads
    return all(projector.positions.get(place, 0) >= heads[place].next_offset for place in TRUTH if place in heads)


@pytest.mark.slow
async def test_a_cancelled_projector_ends_at_whatever_statement(either_url: str) -> None:
    run = SyntheticRun(Recorder()).write()
    log, rest = MemoryLog(), list(run.recorder.drafts)
    async with opened(either_url) as engine:
        await caught_up_once(log, engine)
    share = -(-len(rest) // STRIKES)
    hits = 0
    for at in range(1, STRIKES + 1):
        await log.append(rest[:share])
        del rest[:share]
        hits += await struck(either_url, log, at)
        gc.collect()  # what was cut holds its connection until it is gone; a daemon that was told to stop ends here
    assert hits > 10, "few statements were struck"
    whole = MemoryLog()
    await whole.append(list(run.recorder.drafts))
    async with opened(either_url) as engine, opened("sqlite:///:memory:") as fresh:
        await caught_up_once(log, engine)
        await caught_up_once(whole, fresh)
        assert (await digest(engine)).total == (await digest(fresh)).total
