"""Waiting out a log or a database that does not answer: a daemon on a cluster goes on when they come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sqlalchemy.exc import DBAPIError

from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, UnreachableError, WaitTimeoutError
from rftd.ops.logs import Logger

DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
AWAY: Final = (UnreachableError, WaitTimeoutError)
"""The log does not answer; what was asked of it may have happened or not."""

T = TypeVar("T")


async def opened_in_time(open: Callable[[], Awaitable[T]], *, on_error: Callable[[RftdError], None], clock: Clock) -> T:
    """What `open` gives, tried again with back-off for as long as it takes; `on_error` hears of each reason.

    Whatever the reason: refused credentials, too, may be mended at the other end, and who leaves is started again.
    """
    failures = 0
    while True:
        try:
            return await open()
        except RftdError as error:
            on_error(error)
        except (DBAPIError, OSError) as error:
            what = str(getattr(error, "orig", None) or error).partition("\n")[0]
            on_error(UnreachableError(what, fix="start it; rftd goes on by itself"))
        await clock.sleep(DELAYS_S[min(failures, len(DELAYS_S) - 1)])
        failures += 1


async def persistently(work: Callable[[], Awaitable[None]], name: str, *, clock: Clock, logger: Logger) -> None:
    """Does `work`, and does it again after a pause whenever the log was away, until it returns or is cancelled."""
    failures = 0
    while True:
        began_s = clock.monotonic_s()
        try:
            await work()
        except AWAY as error:
            if clock.monotonic_s() - began_s > DELAYS_S[-1]:
                failures = 0
            logger.warning("log.away", part=name, reason=error.what)
        else:
            return
        await clock.sleep(DELAYS_S[min(failures, len(DELAYS_S) - 1)])
        failures += 1
