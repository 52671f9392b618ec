"""Waiting for what is away: with back-off, for as long as it takes, and never for a wrong option."""

from __future__ import annotations

import asyncio

import pytest

from rftd.daemon.serve.reconnecting import DELAYS_S, Troubles, opened_in_time, persistently
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConfigError, LogLossError, RftdError, UnreachableError
from rftd.ops.logs import logger

pytestmark = pytest.mark.anyio


class QuickClock(SystemClock):
    """Sleeps are noted, not slept."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_s: list[float] = []

    async def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        await asyncio.sleep(0)


class SkippingClock(QuickClock):
    """One on which only sleeps take time."""

    def monotonic_s(self) -> float:
        return sum(self.slept_s)


async def test_what_is_away_is_waited_for_and_each_reason_is_heard() -> None:
    outcomes: list[Exception | str] = [
        UnreachableError("away"),
        ConfigError("refused user"),
        OSError("refused"),
        "there",
    ]
    heard: list[RftdError] = []
    clock = QuickClock()

    async def open() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert await opened_in_time(open, on_error=heard.append, clock=clock) == "there"
    assert [error.what for error in heard] == ["away", "refused user", "refused"]
    assert clock.slept_s == list(DELAYS_S[:3])


async def test_work_goes_on_when_the_log_is_back_and_ends_where_it_lost_something() -> None:
    outcomes: list[Exception | None] = [UnreachableError("away")] * 8 + [None]
    clock = QuickClock()

    async def work() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    await persistently(work, "part", clock=clock, logger=logger())
    assert not outcomes
    assert clock.slept_s == [*DELAYS_S, DELAYS_S[-1], DELAYS_S[-1]]
    outcomes.append(LogLossError("lost"))
    with pytest.raises(LogLossError):
        await persistently(work, "part", clock=clock, logger=logger())


async def test_a_part_that_fails_ends_nothing_and_says_so_until_it_works() -> None:
    clock = SkippingClock()
    troubles = Troubles(clock)
    told: list[str | None] = []

    async def work() -> None:
        told.append(troubles.said())
        if len(told) < 4:
            raise ZeroDivisionError("no")

    await persistently(work, "garbage", clock=clock, logger=logger(), troubles=troubles)
    assert told == [None, *["garbage: ZeroDivisionError: no"] * 3]
    await clock.sleep(3 * DELAYS_S[-1])
    assert troubles.said() is None
