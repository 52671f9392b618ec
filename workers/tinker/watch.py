"""`ServiceWatch`: whether the service answers, looked at while a call is under way and takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_S: Final = 2.0
"""A call that is under way at two looks is looked into."""


class ServiceWatch:
    """Tells what a call waits for. A thread of its own asks, for the caller's is in the call."""

    def __init__(self, answers: Callable[[], bool], place: str) -> None:
        """`answers` asks the service, and blocks for a moment; `place` is the service, in words."""
        self._answers = answers
        self._place = place
        self._under_way: object | None = None
        self._away = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="tinker-watch", daemon=True)
        self._thread.start()

    @property
    def waits_for(self) -> str:
        """The service, in words, if a call is under way and it does not answer; else empty."""
        return self._place if self._away and self._under_way is not None else ""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Holds while a call is under way; one at a time."""
        self._under_way = object()
        try:
            yield
        finally:
            self._under_way = None
            self._away = False

    def close(self) -> None:
        """Ends the looks. Idempotent."""
        self._end.set()

    def _look(self) -> None:
        seen: object | None = None
        while not self._end.wait(LOOK_S):
            call = self._under_way
            if call is not None and call is seen:
                away = not self._answers()
                # A call that ended meanwhile had its answer.
                self._away = away and self._under_way is call
            seen = call
