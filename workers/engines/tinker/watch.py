"""`ServiceWatch`: probes the service while a call takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_S: Final = 2.0
"""Seconds between checks; the service is probed if no call ended in between."""


class ServiceWatch:
    """Detects an unresponsive service during long calls, by probes on a separate thread, because the caller's thread
    waits for the call.
    """

    def __init__(self, answers: Callable[[], bool], service_name: str) -> None:
        """`answers` probes the service, blocking for some seconds, and returns True if it answered; `service_name` is
        for messages.
        """
        self._answers = answers
        self._service_name = service_name
        self._under_way = 0
        self._turn = object()
        """Marker replaced whenever a call ends, and when the first begins."""
        self._unresponsive = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="tinker-watch", daemon=True)
        self._thread.start()

    @property
    def waits_for(self) -> str:
        """Name of the service while a call waits for an answer and the last probe failed; else empty."""
        return self._service_name if self._unresponsive and self._under_way else ""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call to the service for the duration of the block; calls may overlap."""
        if not self._under_way:
            self._turn = object()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._turn = object()
            self._unresponsive = False

    def close(self) -> None:
        """Ends the checks and their thread after the current pause. Idempotent."""
        self._end.set()

    def _look(self) -> None:
        last_turn: object | None = None
        while not self._end.wait(LOOK_S):
            turn = self._turn if self._under_way else None
            if turn is not None and turn is last_turn:
                unresponsive = not self._answers()
                # A call that ended meanwhile had its answer.
                self._unresponsive = unresponsive and self._turn is turn
            last_turn = turn
