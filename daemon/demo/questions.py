"""`Questions`: what the demo asks its daemon, which is waited for as long as it lives, and started again if it dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Protocol, TypeVar

import httpx

from rftd.daemon.client.client import Client
from rftd.daemon.living_wait import LivingWait
from rftd.daemon.settings import Settings
from rftd.ops.errors import NotFoundError, RftdError, UnreachableError, WaitTimeoutError

T = TypeVar("T")

POLL_S: Final = 0.5
REFUSED_S: Final = 60.0
"""A daemon that was started again may not have read its whole log yet: so long it may not know the experiment."""
STARTS: Final = 3
"""A daemon that dies so often while it starts is not started again."""


class Tended(Protocol):
    """The daemon: a `DaemonHost`."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def settings(self) -> Settings:
        """The settings of its clients."""
        ...

    def tend(self) -> None:
        """Starts it again if it has died, and raises UnreachableError if it dies while it starts."""
        ...


class Questions:
    """Questions to the demo's daemon."""

    def __init__(
        self,
        host: Tended,
        *,
        timeout_s: float,
        say: Callable[[str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`timeout_s` is the time for one answer, after which it is asked again; `say` tells of a long wait."""
        self._host = host
        self._timeout_s = timeout_s
        self._say = say
        self._monotonic_s = monotonic_s
        self._sleep = sleep

    def ask(self, question: Callable[[Client], T]) -> T:
        """The daemon's answer; one that was killed is started again, and asked again.

        Raises what the daemon refuses for good, and UnreachableError if it dies whenever it is started.
        """
        wait = LivingWait("the daemon has not answered", say=self._say, monotonic_s=self._monotonic_s)
        began_s = self._monotonic_s()
        while True:
            self._tended()
            try:
                with Client(replace(self._host.settings, timeout_s=self._timeout_s), {}) as client:
                    return question(client)
            except (UnreachableError, WaitTimeoutError, NotFoundError, OSError, httpx.HTTPError) as error:
                if _refuses(error) and self._monotonic_s() - began_s > REFUSED_S:
                    raise
                reason = error.what if isinstance(error, RftdError) else str(error) or type(error).__name__
            wait.goes_on(self._host.pid, reason)
            self._sleep(POLL_S)

    def _tended(self) -> None:
        for attempt in range(1, STARTS + 1):
            try:
                return self._host.tend()
            except UnreachableError:
                if attempt == STARTS:
                    raise
            self._sleep(POLL_S)


def _refuses(error: Exception) -> bool:
    """True if the daemon answered, and not that what it needs is away."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code != HTTPStatus.SERVICE_UNAVAILABLE
    return isinstance(error, NotFoundError)
