"""structlog set-up: one line an event, JSON for machines, console for people; secrets are masked."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import structlog

from rftd.ops.redaction import redact
from rftd.ops.tracing.span import current


class Logger(Protocol):
    """The log of a component: an event name and fields, never a sentence with values inside."""

    def debug(self, event: str, **fields: Any) -> Any: ...
    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


def configure(*, level: str = "INFO", as_json: bool = True, fit: Callable[[str], str] | None = None) -> None:
    """Sets this process's logging: to standard error, since standard output is for data. `fit` may break long lines."""
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _name_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            _mask,  # last before the renderer: what the processors above added is masked too
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(_StandardError(fit)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,  # a logger that was used before this call would keep its old settings
    )


def logger(**fields: Any) -> Logger:
    """A logger whose lines carry these fields."""
    bound: Logger = structlog.get_logger(**fields)
    return bound


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


def _mask(_logger: Any, _method: str, event: Any) -> Any:
    return {name: redact(value, name) for name, value in event.items()}
