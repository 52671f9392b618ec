"""`joined_by_libraries`: places spans of OpenTelemetry's own instrumentation within a block below a span of rftd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rftd.ops.tracing.tracer import TraceSpan


@contextmanager
def joined_by_libraries(span: TraceSpan) -> Iterator[None]:
    """Makes the span OpenTelemetry's current one while the block runs, for programs of third parties.

    Spans of these programs are below the span, and requests carry the span's `traceparent`, if set up there.
    """
    # Imported here: nothing of OpenTelemetry is imported unless tracing is on.
    from opentelemetry import context, trace

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    ours = trace.SpanContext(span.context.trace_id, span.context.span_id, is_remote=False, trace_flags=flags)
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(ours)))
    try:
        yield
    finally:
        context.detach(token)
