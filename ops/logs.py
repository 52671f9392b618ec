"""structlog set-up: one line an event, JSON for machines, console for people; secrets are masked.

Fields have one order: time, level, event, then whom it is about, then the others as they were given.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import structlog

from rftd.ops.clock import Clock, SystemClock
from rftd.ops.log_file import LogFile
from rftd.ops.redaction import mask_text, redact
from rftd.ops.tracing.tracer import current

WINDOW_S: Final = 60.0
"""The time in which an equal line is only counted."""
REMEMBERED: Final = 512
"""The most different log lines that are counted at once; the oldest is then forgotten and its count written."""
COUNTED: Final = frozenset({"warning", "error", "critical"})
"""The levels whose lines repeat when something is wrong; lines of other levels say each something new."""
_APART: Final = frozenset({"time", "trace_id", "exc_info", "stack_info"})
"""The fields that make no difference."""

FIRST: Final = ("time", "level", "event", "role", "slot", "experiment", "name")
"""The fields that stand first in each line, in this order."""


class RepeatedLines:
    """A processor of structlog: the first of equal lines passes; later ones are one line a minute, `repeated` times.

    It comes before the time is stamped. `write` writes the line that tells a count, which comes here again and passes.
    """

    def __init__(self, write: Callable[[str, dict[str, Any]], None], clock: Clock | None = None) -> None:
        self._write = write
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], _Line] = {}
        """The counted lines by level and text, in the order of their first appearance."""

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


class Logger(Protocol):
    """The log of a component: an event name and fields, never a sentence with values inside."""

    def debug(self, event: str, **fields: Any) -> Any: ...
    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


def configure(
    *,
    level: str = "INFO",
    as_json: bool = True,
    fit: Callable[[str], str] | None = None,
    file: LogFile | None = None,
    libraries: bool = False,
) -> None:
    """Sets this process's logging: to standard error, since standard output is for data; and as JSON to a `file`.

    `fit` may break long lines of standard error. With a file, or with `libraries`, warnings of libraries that use
    Python's own logging are lines like all others. Equal warnings and errors are counted, and told once a minute.
    """
    repeats = RepeatedLines(_write_line)
    atexit.register(repeats.flush)
    console = structlog.dev.ConsoleRenderer(colors=False, sort_keys=False)
    renderer: Any = structlog.processors.JSONRenderer() if as_json else console
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            repeats,
            _name_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            _mask,  # what the processors above added is masked too
            _in_order,
            *([_Copy(file)] if file is not None else ()),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(_StandardError(fit)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,  # a logger that was used before this call would keep its old settings
    )
    if file is not None or libraries:
        logging.basicConfig(handlers=[_OfLibraries()], level=logging.WARNING, force=True)


def logger(**fields: Any) -> Logger:
    """A logger whose lines carry these fields."""
    bound: Logger = structlog.get_logger(**fields)
    return bound


def _write_line(level: str, fields: dict[str, Any]) -> None:
    """Writes a line of these fields, `event` among them."""
    getattr(logger(), level)(**fields)


class _StandardError:
    """Standard error as it is at each line. A line may be lost: no process ends because it could not be written."""

    # A full disk gives OSError; a stream that its owner has closed or taken away, ValueError or AttributeError.
    # So the stream is looked up at each line: the one of `configure` may have been replaced, and closed, since.

    def __init__(self, fit: Callable[[str], str] | None) -> None:
        self._fit = fit

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text if self._fit is None else self._fit(text))

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


def _name_trace(_logger: Any, _method: str, event: Any) -> Any:
    """Adds the trace of the open span, by which `rftd logs --trace` finds the line."""
    span = current()
    # A task that an engine began within a rollout, and that outlives it, is in no trace.
    if span is not None and not span.end_ns:
        event["trace_id"] = f"{span.context.trace_id:032x}"
    return event


class _Copy:
    """Writes each line to a file as well, as JSON: what somebody put into a field cannot begin a line of its own."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._render = structlog.processors.JSONRenderer()

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        self._file.write(str(self._render(logger, method, dict(event))))
        return event


class _OfLibraries(logging.Handler):
    """Makes lines of this log of what comes by Python's own logging."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit are the library's fault, and no reason to fail
            text = str(record.msg)
        level = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(logger(library=record.name), level)(text, exc_info=record.exc_info)


def _mask(_logger: Any, _method: str, event: Any) -> Any:
    masked = {name: redact(value, name) for name, value in event.items()}
    return {name: mask_text(value) if isinstance(value, str) else value for name, value in masked.items()}


def _in_order(_logger: Any, _method: str, event: Any) -> Any:
    first = {name: event[name] for name in FIRST if name in event}
    return first | event
