"""A scraper that asks often: its readings of the tables are paced."""

from __future__ import annotations

import pytest

from rftd.daemon.observe.metrics_scrape import REST, RETRY_S, PacedReading
from rftd.ops.clock import ManualClock
from rftd.ops.errors import UnreachableError

pytestmark = pytest.mark.anyio


class Tables:
    """Tables that take processor time, and on a busy machine much longer than that."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.processor_s = 0.0
        self.reads = 0
        self.away = False
        self.slowdown = 1.0
        self.reading = PacedReading[int](self.clock, lambda: self.processor_s)

    async def read(self) -> int:
        self.reads += 1
        self.processor_s += 0.5
        self.clock.advance(0.5 * self.slowdown)
        if self.away:
            raise UnreachableError("the tables do not answer")
        return self.reads

    async def shown_at(self, place: int) -> int | None:
        return await self.reading.of(place, self.read)


async def test_who_asks_every_second_reads_the_tables_no_more_often_than_is_cheap() -> None:
    tables = Tables()
    assert await tables.shown_at(1) == 1
    for second in range(8 * REST // 2):
        tables.clock.advance(1.0)
        await tables.shown_at(second + 2)
    assert tables.reads == 1 + 8, "a reading of half a second is good for half as many seconds as it rests"
    tables.clock.advance(REST)
    assert await tables.shown_at(1000) == 10
    tables.clock.advance(REST)
    assert await tables.shown_at(1000) == 10, "the tables did not move"


async def test_a_busy_machine_makes_no_reading_good_for_longer() -> None:
    tables = Tables()
    tables.slowdown = 40.0
    assert await tables.shown_at(1) == 1
    tables.clock.advance(0.5 * REST)
    assert await tables.shown_at(2) == 2


async def test_figures_stay_with_their_age_while_the_tables_do_not_answer() -> None:
    tables = Tables()
    assert tables.reading.age_s is None
    assert await tables.shown_at(1) == 1
    tables.clock.advance(REST)
    tables.away = True
    assert await tables.shown_at(2) == 1
    assert tables.reading.failed
    assert tables.reading.age_s == REST + 0.5
    tables.away = False
    tables.clock.advance(RETRY_S)
    assert await tables.shown_at(2) == 3, "it is tried again soon, though nothing moved"
    assert not tables.reading.failed
    assert tables.reading.age_s == 0.0


async def test_tables_that_never_answered_show_nothing() -> None:
    tables = Tables()
    tables.away = True
    assert await tables.shown_at(1) is None
    tables.clock.advance(RETRY_S)
    assert await tables.shown_at(1) is None
    assert tables.reads == 2
