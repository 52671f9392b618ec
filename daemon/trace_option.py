"""The options that say where traces go: `--traces URL` and `--trace-ratio`, of a daemon and of a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def trace_option(function: F) -> F:
    """Adds the options to a verb: its `traces` are a `TraceOptions`, or None where nothing is traced."""

    @functools.wraps(function)
    def traced(*args: Any, traces_url: str | None, trace_ratio: float, **kwargs: Any) -> Any:
        options = None
        if traces_url:
            from rftd.ops.tracing.trace_options import trace_options

            options = trace_options(traces_url, trace_ratio)
        return function(*args, traces=options, **kwargs)

    where = click.option(
        "--traces",
        "traces_url",
        metavar="URL",
        envvar="RFTD_TRACES",
        help="OTLP/HTTP receiver of traces: http://HOST:4318. Default: none, nothing is traced.",
    )
    share = click.option(
        "--trace-ratio",
        type=click.FloatRange(0.0, 1.0),
        default=0.01,
        show_default=True,
        envvar="RFTD_TRACE_RATIO",
        help="Share of rollouts and requests to trace; steps, weights and errors always are.",
    )
    return where(share(traced))  # type: ignore[return-value]
