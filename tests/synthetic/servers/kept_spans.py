"""A sink of spans that keeps what it is given, in the test's process."""

from __future__ import annotations

from rftd.ops.tracing.tracer import TraceSpan


class KeptSpans:
    """The spans that ended so far."""

    dropped_total = 0

    def __init__(self) -> None:
        self.spans: list[TraceSpan] = []

    def put(self, span: TraceSpan) -> None:
        """Takes one."""
        self.spans.append(span)
