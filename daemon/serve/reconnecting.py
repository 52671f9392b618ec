"""Retries while a log or a database is unreachable: a daemon on a cluster continues when they return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import FencedError, LogLossError, RftdError, UnreachableError, WaitTimeoutError
from rftd.ops.logs import Logger

DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before each retry of a connection; the last value repeats."""
UNREACHABLE_ERRORS: Final = (UnreachableError, WaitTimeoutError)
"""Errors of an unreachable log; a failed request may still have taken effect."""

T = TypeVar("T")


async def opened_in_time(
    open: Callable[[], Awaitable[T]],
    *,
    on_error: Callable[[RftdError], None],
    clock: Clock,
    also: tuple[type[Exception], ...] = (),
) -> T:
    """Awaits `open`, retrying with back-off and without a limit until it succeeds; `on_error` gets the reason of each
    failure.

    Retried for any reason: even refused credentials may be corrected on the server, and an exiting daemon would only be
    restarted. `also` are a driver's errors of the same meaning.
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
            problem = str(getattr(error, "orig", None) or error).partition("\n")[0]
            on_error(UnreachableError(problem, fix="start it; rftd then continues automatically"))
        await clock.sleep(DELAYS_S[min(failures, len(DELAYS_S) - 1)])
        failures += 1


class Troubles:
    """Parts of the daemon that keep failing, as reported by the readiness probe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[str, float]] = {}

    def note(self, name: str, reason: str) -> None:
        """Records a failure of a part with the reason and the current time."""
        self._failed[name] = (reason, self._clock.monotonic_s())

    def said(self) -> str | None:
        """Returns the parts that failed recently, with reasons; None if there are none."""
        # Twice the longest pause: a repeatedly failing part is named without a gap between two attempts.
        since_s = self._clock.monotonic_s() - 2 * DELAYS_S[-1]
        failures = [f"{name}: {reason}" for name, (reason, at_s) in sorted(self._failed.items()) if at_s >= since_s]
        return "; ".join(failures) or None


async def persistently(
    work: Callable[[], Awaitable[None]], name: str, *, clock: Clock, logger: Logger, troubles: Troubles | None = None
) -> None:
    """Runs `work` until it returns or is cancelled, restarting it after a pause whenever it fails.

    An error of one part must not end the others, nor the running experiments: it is logged, and recorded in `troubles`.
    Raises FencedError if another daemon took over, and LogLossError.
    """
    failures = 0
    while True:
        began_s = clock.monotonic_s()
        try:
            await work()
        except (FencedError, LogLossError):
            raise
        except UNREACHABLE_ERRORS as error:
            end_if_cancelled()
            logger.warning("log.away", part=name, reason=error.what)
        except Exception as error:
            end_if_cancelled()
            logger.error("part.failed", part=name, exc_info=error)
            if troubles is not None:
                troubles.note(name, error.what if isinstance(error, RftdError) else f"{type(error).__name__}: {error}")
        else:
            return
        # After working for a while, a failure counts as a new one.
        if clock.monotonic_s() - began_s > DELAYS_S[-1]:
            failures = 0
        await clock.sleep(DELAYS_S[min(failures, len(DELAYS_S) - 1)])
        failures += 1
