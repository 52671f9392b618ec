"""structlog set-up: a line per event, JSON for machines, console for people; secrets are masked.

Fields have a fixed order: time, level, event, then the subject, then the others in call order.
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
"""Seconds during which an equal line is only counted."""
REMEMBERED: Final = 512
"""Maximum different log lines counted at once; beyond it the oldest is dropped and its count written."""
COUNTED: Final = frozenset({"warning", "error", "critical"})
"""The levels with repetitive lines in case of trouble; every line of other levels is news."""
_APART: Final = frozenset({"time", "trace_id", "exc_info", "stack_info"})
"""The fields ignored when lines are compared."""

FIRST: Final = ("time", "level", "event", "role", "slot", "experiment", "name")
"""The fields at the beginning of each line, in this order."""


class RepeatedLines:
    """A structlog processor passing the first of equal warnings or errors; later ones become a single line per minute
    with `repeated`.

    The processor runs before the time stamp. `write` writes a line with a count, passed through here again unchanged.
    """

    def __init__(self, write: Callable[[str, dict[str, Any]], None], clock: Clock | None = None) -> None:
        """`write` writes a line with its number of repetitions; `clock` measures the minute."""
        self._write = write
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, str], _Line] = {}
        """Lines being counted, by level and text, in the order of their first appearance."""

    def __call__(self, _logger: Any, method: str, event: Any) -> Any:
        if "repeated" in event:
            return event
        now_s = self._clock.monotonic_s()
        if method not in COUNTED:
            with self._lock:
                expired = self._expired(now_s)
            self._write_counts(expired)
            return event
        key = (method, repr([(name, field) for name, field in event.items() if name not in _APART]))
        with self._lock:
            expired = self._expired(now_s)
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = _Line(now_s, method, event)
            else:
                line.repeated += 1
        self._write_counts(expired)
        if line is not None:
            raise structlog.DropEvent
        return event

    def flush(self) -> None:
        """Writes all pending counts; for the end of the process."""
        with self._lock:
            lines = list(self._lines.values())
            self._lines.clear()
        self._write_counts(lines)

    def _expired(self, now_s: float) -> list[_Line]:
        """Removes and returns the lines with an ended window, and the oldest beyond `REMEMBERED`."""
        expired = []
        for key, line in list(self._lines.items()):
            if now_s - line.since_s < WINDOW_S and len(self._lines) <= REMEMBERED:
                break
            expired.append(self._lines.pop(key))
        return expired

    def _write_counts(self, lines: list[_Line]) -> None:
        """Writes a line for each of `lines` that was repeated."""
        for line in lines:
            if line.repeated:
                self._write(line.method, {**line.fields, "repeated": line.repeated})


class _Line:
    """A line, and the number of repetitions."""

    def __init__(self, since_s: float, method: str, event: Any) -> None:
        """Begins counting a line at monotonic second `since_s`."""
        self.since_s = since_s
        self.method = method
        self.fields = {name: field for name, field in event.items() if name not in _APART}
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
    """Sets up the process's logging: to standard error, because standard output is for data; and as JSON to a `file`.

    `fit` may break long lines of standard error. With a file, or with `libraries`, warnings from Python's own logging
    become lines like all others. Equal warnings and errors are counted, and reported once a minute.
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
            _mask,  # also masks fields added by the processors above
            _in_order,
            *([_Copy(file)] if file is not None else ()),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(_StandardError(fit)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,  # a logger used before this call would keep its old settings
    )
    if file is not None or libraries:
        logging.basicConfig(handlers=[_OfLibraries()], level=logging.WARNING, force=True)


def logger(**fields: Any) -> Logger:
    """Returns a structlog logger that adds these fields to each line."""
    bound: Logger = structlog.get_logger(**fields)
    return bound


def _write_line(level: str, fields: dict[str, Any]) -> None:
    """Writes a line of the given fields, including `event`."""
    getattr(logger(), level)(**fields)


class _StandardError:
    """Standard error as of each line. A line may be lost: no process fails for an unwritable log."""

    # A full disk raises OSError; a closed or removed stream, ValueError or AttributeError. The stream is looked up for
    # each line: the stream at `configure` may have been replaced, and closed, since.

    def __init__(self, fit: Callable[[str], str] | None) -> None:
        """`fit` shortens each line to the terminal; None writes lines unchanged."""
        self._fit = fit

    def write(self, text: str) -> None:
        """Writes text; a failure is ignored."""
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text if self._fit is None else self._fit(text))

    def flush(self) -> None:
        """Writes buffered text; a failure is ignored."""
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


def _name_trace(_logger: Any, _method: str, event: Any) -> Any:
    """Adds the open span's trace id, by which `rftd logs --trace` finds the line."""
    span = current()
    # A task started by an engine within a rollout, and outliving it, belongs to no trace.
    if span is not None and not span.end_ns:
        event["trace_id"] = f"{span.context.trace_id:032x}"
    return event


class _Copy:
    """Writes each line to a file as well, as JSON: a field's content cannot start a new line."""

    def __init__(self, file: LogFile) -> None:
        """Copies lines into `file`."""
        self._file = file
        self._render = structlog.processors.JSONRenderer()

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        self._file.write(str(self._render(logger, method, dict(event))))
        return event


class _OfLibraries(logging.Handler):
    """Turns records of Python's own logging into lines of the log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record as a line of the log."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # mismatched arguments are the library's fault, and no reason to fail
            text = str(record.msg)
        level = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(logger(library=record.name), level)(text, exc_info=record.exc_info)


def _mask(_logger: Any, _method: str, event: Any) -> Any:
    """Masks secrets in the fields and texts of a line."""
    masked = {name: redact(field, name) for name, field in event.items()}
    return {name: mask_text(field) if isinstance(field, str) else field for name, field in masked.items()}


def _in_order(_logger: Any, _method: str, event: Any) -> Any:
    """Moves the fields of `FIRST` to the beginning of a line."""
    first = {name: event[name] for name in FIRST if name in event}
    return first | event
