"""A scraper that asks often: its readings of the tables are paced."""

from __future__ import annotations

import pytest

from rftd.daemon.metrics_scrape import REST, PacedReading
from rftd.ops.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_who_asks_every_second_reads_the_tables_no_more_often_than_is_cheap() -> None:
    clock = ManualClock()
    reading = PacedReading[int](clock)
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        clock.advance(0.5)
        return reads

    assert await reading.of(1, read) == 1
    for second in range(8 * REST // 2):
        clock.advance(1.0)
        await reading.of(second + 2, read)
    assert reads == 1 + 8, "a reading of half a second is good for half as many seconds as it rests"
    clock.advance(REST)
    assert await reading.of(1000, read) == 10
    clock.advance(REST)
    assert await reading.of(1000, read) == 10, "the tables did not move"
