"""Waiting out a log or a database that does not answer: a daemon on a cluster goes on when they come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import FencedError, LogLossError, RftdError, UnreachableError, WaitTimeoutError
from rftd.ops.logs import Logger

DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
AWAY: Final = (UnreachableError, WaitTimeoutError)
"""The log does not answer; what was asked of it may have happened or not."""

T = TypeVar("T")


async def opened_in_time(
    open: Callable[[], Awaitable[T]],
    *,
    on_error: Callable[[RftdError], None],
    clock: Clock,
    also: tuple[type[Exception], ...] = (),
) -> T:
    """The result of `open`, which is tried again with back-off for as long as it takes; `on_error` gets each reason.

    Whatever the reason: refused credentials, too, may be mended at the other end, and who leaves is started again.
    `also` are errors of a driver that say so.
    """
    away: tuple[type[Exception], ...] = (OSError, *also)
    failures = 0
    while True:
        try:
            return await open()
        except RftdError as error:
            end_if_cancelled()
            on_error(error)
        except away as error:
            end_if_cancelled()
            what = str(getattr(error, "orig", None) or error).partition("\n")[0]
            on_error(UnreachableError(what, fix="start it; rftd goes on by itself"))
        await clock.sleep(DELAYS_S[min(failures, len(DELAYS_S) - 1)])
        failures += 1


class Troubles:
    """The daemon's own parts that fail again and again, which readiness names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[str, float]] = {}

    def note(self, part: str, reason: str) -> None:
        """A part failed just now."""
        self._failed[part] = (reason, self._clock.monotonic_s())

    def said(self) -> str | None:
        """Every part that failed a moment ago, and why; None if all work."""
        # Twice the longest pause: a part that fails again and again is named without a gap between two attempts.
        since_s = self._clock.monotonic_s() - 2 * DELAYS_S[-1]
        found = [f"{part}: {reason}" for part, (reason, at_s) in sorted(self._failed.items()) if at_s >= since_s]
        return "; ".join(found) or None


async def persistently(
    work: Callable[[], Awaitable[None]], name: str, *, clock: Clock, logger: Logger, troubles: Troubles | None = None
) -> None:
    """Does `work`, and does it again after a pause whenever it fails, until it returns or is cancelled.

    An error of one part is no reason to end the others, nor the experiments under way: it is logged, and noted in
    `troubles`. Raises FencedError if another daemon took over, and LogLossError.
    """
    failures = 0
    while True:
        began_s = clock.monotonic_s()
        try:
            await work()
        except (FencedError, LogLossError):
            raise
        except AWAY as error:
            end_if_cancelled()
            logger.warning("log.away", part=name, reason=error.what)
        except Exception as error:
            end_if_cancelled()
            logger.error("part.failed", part=name, exc_info=error)
            if troubles is not None:
                troubles.note(name, error.what if isinstance(error, RftdError) else f"{type(error).__name__}: {error}")
        else:
            return
        # It worked for a while, so this is another failure and not the same one again.
        if clock.monotonic_s() - began_s > DELAYS_S[-1]:
            failures = 0
        await clock.sleep(DELAYS_S[min(failures, len(DELAYS_S) - 1)])
        failures += 1
