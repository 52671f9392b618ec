"""Set-up of structlog: one line per event, as JSON for machines or as text for people, with secrets masked.

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
"""Seconds after a line during which equal lines are counted instead of written."""
REMEMBERED: Final = 512
"""Maximum number of different lines counted at once; beyond this number the oldest is dropped, and its count written.
"""
COUNTED: Final = frozenset({"warning", "error", "critical"})
"""Levels whose equal lines are counted; lines of other levels are always written."""
_IGNORED_FIELDS: Final = frozenset({"time", "trace_id", "exc_info", "stack_info"})
"""Fields ignored when lines are compared."""

FIRST: Final = ("time", "level", "event", "role", "slot", "experiment", "name")
"""Fields at the beginning of each line, in this order."""


class RepeatedLines:
    """A structlog processor passing the first of equal warnings or errors; later ones become a single line per minute
    with `repeated`.

    The processor runs before the time stamp. `write` writes a line with a count, passed through here again unchanged.
    """

    def __init__(self, write: Callable[[str, dict[str, Any]], None], clock: Clock | None = None) -> None:
        """`write` writes a line with its number of repetitions; `clock` measures the minute."""
        self._write = write
        """Function writing a line with its number of repetitions."""
        self._clock = clock or SystemClock()
        """Clock that measures the window `WINDOW_S`."""
        self._lock = threading.Lock()
        """Held while `_lines` changes, because any thread may log."""
        self._lines: dict[tuple[str, str], _Line] = {}
        """Lines being counted, by level and text, in the order of their first appearance."""

    def __call__(self, _logger: Any, method: str, event: Any) -> Any:
        """Returns the event of a line to be written. Raises DropEvent for a line equal to an earlier one of the same
        minute.
        """
        if "repeated" in event:
            return event
        now_s = self._clock.monotonic_s()
        if method not in COUNTED:
            with self._lock:
                expired = self._pop_expired(now_s)
            self._write_counts(expired)
            return event
        key = (method, repr([(name, field) for name, field in event.items() if name not in _IGNORED_FIELDS]))
        with self._lock:
            expired = self._pop_expired(now_s)
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

    def _pop_expired(self, now_s: float) -> list[_Line]:
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
    """The first of equal lines, and the number of its repetitions."""

    def __init__(self, since_s: float, method: str, event: Any) -> None:
        """Begins counting a line at monotonic second `since_s`."""
        self.since_s = since_s
        """Monotonic second of the first line."""
        self.method = method
        """Level of the line, which is the name of the logger's method."""
        self.fields = {name: field for name, field in event.items() if name not in _IGNORED_FIELDS}
        """Fields of the line, except the ignored ones."""
        self.repeated = 0
        """Number of repetitions so far."""


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
            _order_fields,
            *([_FileCopy(file)] if file is not None else ()),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(_StandardError(fit)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,  # a logger used before this call would keep its old settings
    )
    if file is not None or libraries:
        logging.basicConfig(handlers=[_LibraryHandler()], level=logging.WARNING, force=True)


def logger(**fields: Any) -> Logger:
    """Returns a structlog logger that adds these fields to each line."""
    bound: Logger = structlog.get_logger(**fields)
    return bound


def _write_line(level: str, fields: dict[str, Any]) -> None:
    """Writes a line of the given fields, including `event`."""
    getattr(logger(), level)(**fields)


class _StandardError:
    """Writes to the present standard error; a failed write is ignored, so that no process fails because of an
    unwritable log.
    """

    # A full disk raises OSError; a closed or removed stream, ValueError or AttributeError. The stream is looked up for
    # each line: the stream at `configure` may have been replaced, and closed, since.

    def __init__(self, fit: Callable[[str], str] | None) -> None:
        """`fit` breaks long lines for the terminal; None writes lines unchanged."""
        self._fit = fit
        """Function fitting lines to the width of the terminal; None without a change."""

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


class _FileCopy:
    """Processor that writes each line to a file as well, as JSON, so that no field's content can start a new line."""

    def __init__(self, file: LogFile) -> None:
        """Copies lines into `file`."""
        self._file = file
        """Log file that receives a copy of each line as JSON."""
        self._render = structlog.processors.JSONRenderer()
        """Renderer of a line's fields as JSON."""

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        """Writes the line to the file, and returns its fields unchanged."""
        self._file.write(str(self._render(logger, method, dict(event))))
        return event


class _LibraryHandler(logging.Handler):
    """Handler that writes records of Python's own logging as lines of the log."""

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


def _order_fields(_logger: Any, _method: str, event: Any) -> Any:
    """Moves the fields of `FIRST` to the beginning of a line."""
    first = {name: event[name] for name in FIRST if name in event}
    return first | event
