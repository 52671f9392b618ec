"""`ServiceWatch`: whether the service answers, looked at while a call is under way and takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_S: Final = 2.0
"""Calls of which none ended between two looks are looked into."""


class ServiceWatch:
    """Tells what a call waits for. A thread of its own asks, for the caller's is in the call."""

    def __init__(self, answers: Callable[[], bool], place: str) -> None:
        """`answers` asks the service, and blocks for a moment; `place` is the service, in words."""
        self._answers = answers
        self._place = place
        self._under_way = 0
        self._turn = object()
        """Another one whenever a call ends, and when the first one begins."""
        self._away = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="tinker-watch", daemon=True)
        self._thread.start()

    @property
    def waits_for(self) -> str:
        """The service, in words, if a call is under way and it does not answer; else empty."""
        return self._place if self._away and self._under_way else ""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Holds while a call is under way. Several may be, of one thread."""
        if not self._under_way:
            self._turn = object()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._turn = object()
            self._away = False

    def close(self) -> None:
        """Ends the looks. Idempotent."""
        self._end.set()

    def _look(self) -> None:
        seen: object | None = None
        while not self._end.wait(LOOK_S):
            turn = self._turn if self._under_way else None
            if turn is not None and turn is seen:
                away = not self._answers()
                # A call that ended meanwhile had its answer.
                self._away = away and self._turn is turn
            seen = turn
