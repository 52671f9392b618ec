"""`RepeatedLines`: equal log lines are counted instead of written, so that no client can fill a disk with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import structlog

from rftd.ops.clock import Clock, SystemClock

WINDOW_S: Final = 60.0
"""The time in which an equal line is only counted."""
REMEMBERED: Final = 512
"""Different lines that are told apart; the oldest is forgotten, and its count written."""
COUNTED: Final = frozenset({"warning", "error", "critical"})
"""The levels whose lines repeat when something is wrong; lines of other levels say each something new."""
_APART: Final = frozenset({"time", "trace_id", "exc_info", "stack_info"})
"""The fields that make no difference."""


class RepeatedLines:
    """A processor of structlog: the first of equal lines passes; later ones are one line a minute, `repeated` times.

    It comes before the time is stamped. `write` writes the line that tells a count, which comes here again and passes.
    """

    def __init__(self, write: Callable[[str, dict[str, Any]], None], clock: Clock | None = None) -> None:
        self._write = write
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], _Line] = {}
        """By level and text, those first that began first."""

    def __call__(self, _logger: Any, method: str, event: Any) -> Any:
        if "repeated" in event:
            return event
        now_s = self._clock.monotonic_s()
        if method not in COUNTED:
            with self._lock:
                ended = self._ended(now_s)
            self._tell(ended)
            return event
        key = (method, repr([(name, value) for name, value in event.items() if name not in _APART]))
        with self._lock:
            ended = self._ended(now_s)
            line = self._seen.get(key)
            if line is None:
                self._seen[key] = _Line(now_s, method, event)
            else:
                line.repeated += 1
        self._tell(ended)
        if line is not None:
            raise structlog.DropEvent
        return event

    def flush(self) -> None:
        """Writes the counts that nothing has told yet; for the end of the process."""
        with self._lock:
            lines = list(self._seen.values())
            self._seen.clear()
        self._tell(lines)

    def _ended(self, now_s: float) -> list[_Line]:
        """Takes out the lines whose time is over, and the oldest ones beyond those that are remembered."""
        ended = []
        for key, line in list(self._seen.items()):
            if now_s - line.since_s < WINDOW_S and len(self._seen) <= REMEMBERED:
                break
            ended.append(self._seen.pop(key))
        return ended

    def _tell(self, lines: list[_Line]) -> None:
        for line in lines:
            if line.repeated:
                self._write(line.method, {**line.fields, "repeated": line.repeated})


class _Line:
    """One text, and how often it came again."""

    def __init__(self, since_s: float, method: str, event: Any) -> None:
        self.since_s = since_s
        self.method = method
        self.fields = {name: value for name, value in event.items() if name not in _APART}
        self.repeated = 0
