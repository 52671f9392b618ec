"""The options for exporting traces: `--traces URL` and `--trace-ratio`, of a daemon and of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rftd.daemon.cli.option_group import option_group

if TYPE_CHECKING:
    from rftd.ops.tracing.trace_options import TraceOptions

_OPTIONS: Final = (
    click.option(
        "--traces",
        "traces_url",
        metavar="URL",
        envvar="RFTD_TRACES",
        help="OTLP/HTTP receiver of traces: http://HOST:4318. Default: none, nothing is traced.",
    ),
    click.option(
        "--trace-ratio",
        type=click.FloatRange(0.0, 1.0),
        default=0.01,
        show_default=True,
        envvar="RFTD_TRACE_RATIO",
        help="Share of rollouts and requests to trace; steps, weights and errors always are.",
    ),
)
"""Options of tracing, in the order of the help."""


def _traces(traces_url: str | None, trace_ratio: float) -> TraceOptions | None:
    """Returns the options of tracing; None without a URL."""
    if not traces_url:
        return None
    from rftd.ops.tracing.trace_options import trace_options

    return trace_options(traces_url, trace_ratio)


trace_option: Final = option_group("traces", _OPTIONS, _traces)
"""Adds the options to a verb, passed as `traces`: a `TraceOptions`, or None without tracing."""
