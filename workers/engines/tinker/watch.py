"""`ServiceWatch`: detects an unresponsive service during long calls, by probes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

CHECK_EVERY_S: Final = 2.0
"""Seconds between checks; the service is probed if no call ended in between."""


class ServiceWatch:
    """Detects an unresponsive service during long calls, by probes on a separate thread, because the caller's thread
    waits for the call.
    """

    def __init__(self, answers: Callable[[], bool], service_name: str) -> None:
        """Starts the thread of the checks, which ends with `close`.

        `answers` probes the service, blocking for some seconds, and returns True if it answered; `service_name` is for
        messages.
        """
        self._probe = answers
        self._service_name = service_name
        self._open_calls = 0
        """Number of calls waiting for an answer."""
        self._turn = object()
        """Marker replaced whenever a call ends, and when the first begins."""
        self._unresponsive = False
        """True if the last probe failed and no call has ended since."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._probe_until_closed, name="tinker-watch", daemon=True)
        self._thread.start()

    @property
    def waits_for(self) -> str:
        """Name of the service while a call waits for an answer and the last probe failed; else empty."""
        return self._service_name if self._unresponsive and self._open_calls else ""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call to the service for the duration of the block; calls may overlap."""
        if not self._open_calls:
            self._turn = object()
        self._open_calls += 1
        try:
            yield
        finally:
            self._open_calls -= 1
            self._turn = object()
            self._unresponsive = False

    def close(self) -> None:
        """Ends the checks: at once between two probes, otherwise after the probe under way. Idempotent."""
        self._closed.set()

    def _probe_until_closed(self) -> None:
        """Probes the service at each check if the same calls were waiting at the check before."""
        last_turn: object | None = None
        while not self._closed.wait(CHECK_EVERY_S):
            turn = self._turn if self._open_calls else None
            if turn is not None and turn is last_turn:
                unresponsive = not self._probe()
                # A call that ended meanwhile had its answer.
                self._unresponsive = unresponsive and self._turn is turn
            last_turn = turn
