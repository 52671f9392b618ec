"""A page that is watched: read when something was written, its books as often as their size allows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.api import live_page
from rftd.daemon.http.api.live_page import LivePage
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.run.why.wait import Wait
from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.memory import MemoryLog
from rftd.workers.tracking.cursor import Cursor

pytestmark = pytest.mark.anyio


@dataclass
class Watched:
    """An experiment under way, and its page as somebody watches it."""

    run: SyntheticRun
    log: MemoryLog
    projector: Projector
    clock: ManualClock
    page: LivePage
    written: int = 0

    async def write(self) -> None:
        """What is new on the recorder, into the tables."""
        await self.log.append(self.run.recorder.drafts[self.written :])
        self.written = len(self.run.recorder.drafts)
        await self.projector.catch_up()

    async def look(self) -> ExperimentPage:
        page = await self.page.look()
        assert page is not None
        return page


async def no_waits(_: UUID) -> list[Wait]:
    return []


async def no_trackers(_: UUID) -> dict[str, Cursor]:
    return {}


@pytest.fixture
async def watched(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Watched]:
    nobody, clock, log = cast(Any, None), ManualClock(), MemoryLog()
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    projector = Projector(log, engine, clock=clock)
    services = Services(
        operations=SimpleNamespace(
            stopped=lambda _: None,
            opening=lambda _: [],
            memory=lambda _: [],
            used_bytes=lambda _: {},
            trackers=no_trackers,
            spent=lambda _: None,
            waits=no_waits,
            under_way=lambda _: None,
            pause_state=lambda _: None,
        ),
        engine=engine,
        log=log,
        applied=projector,
        health=nobody,
        scrape=cast(Any, SimpleNamespace(foreign_records=lambda _: None)),
        clock=clock,
        ids=nobody,
        version="1",
    )
    run = SyntheticRun(Recorder())
    run.begin()
    run.warm_up()
    run.explore()
    found = Watched(run, log, projector, clock, LivePage(services, run.id))
    await found.write()
    yield found
    await projector.close()
    await engine.dispose()


async def test_nothing_is_read_while_nothing_is_written(watched: Watched) -> None:
    first = await watched.look()
    assert first.experiment.books.waiting == 4
    assert await watched.page.look() is None
    watched.run.explore()
    await watched.write()
    watched.clock.advance(0.5)
    assert (await watched.look()).experiment.books.waiting == 8
    assert await watched.page.look() is None


async def test_many_experiences_are_counted_seldom_but_in_the_end(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "COUNTED_PER_S", 1)
    await watched.look()
    watched.run.explore()
    await watched.write()
    page = await watched.look()
    assert page.experiment.groups_closed == 2, "these are of before"
    assert page.experiment.books.produced == 4, "these are of before"
    assert await watched.page.look() is None
    watched.clock.advance(4.0)
    page = await watched.look()
    assert page.experiment.books.produced == 8, "counted again although nothing was written"
    assert await watched.page.look() is None


async def test_books_are_new_when_the_state_is(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "COUNTED_PER_S", 1)
    await watched.look()
    watched.run.explore()
    watched.run.finish()
    await watched.write()
    page = await watched.look()
    assert page.experiment.summary.state == "completed"
    assert page.experiment.books.produced == 8
