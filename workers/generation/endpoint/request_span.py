"""`RequestSpan`: the trace span of one HTTP request for a model, in the caller's trace or else in the rollout's."""

from __future__ import annotations

from collections.abc import Awaitable

from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.trace_context import parsed
from rftd.ops.tracing.tracer import SpanKind, Tracer, TraceSpan
from rftd.workers.generation.endpoint.call_error import CallError
from rftd.workers.generation.endpoint.call_reply import CALLS
from rftd.workers.generation.endpoint.http_call import HttpCall


class RequestSpan:
    """A span around an answer; without effect where nothing is traced."""

    def __init__(self, http: HttpCall, tracer: Tracer | None, rollout: TraceSpan | None) -> None:
        """`rollout` is the span of the request's rollout, if any and traced."""
        self._http = http
        self._span = None if tracer is None else _begin_span(http, tracer, rollout)
        """The span; None without tracing."""

    async def around(self, answer: Awaitable[None]) -> None:
        """Awaits the answer within the span. Raises the answer's errors."""
        span = self._span
        if span is None:
            await answer
            return
        status = 500
        try:
            with span.active():
                await answer
            status = self._http.status
        except CallError as error:
            status = error.status
            raise
        finally:
            span.attributes[names.HTTP_STATUS] = status
            if status >= 500:
                span.fail(str(status))
            span.end()


def _begin_span(http: HttpCall, tracer: Tracer, rollout: TraceSpan | None) -> TraceSpan | None:
    """Begins the span of a request: below the caller's, else below the rollout's, else alone; None outside of the
    sample.
    """
    path = http.path.rstrip("/")
    method = names.http_method(http.method)
    # Paths outside the APIs are arbitrary text from clients, so they stay out of the span's name.
    name = f"{method} {path}" if path in CALLS else method
    caller = parsed(http.headers.get(b"traceparent", b"").decode("latin-1"))
    span: TraceSpan | None = None
    if caller is not None or rollout is None:
        apart = rollout is not None and caller is not None and rollout.context.trace_id != caller.trace_id
        links = (rollout.context,) if rollout is not None and apart else ()
        span = tracer.begin(name, SpanKind.SERVER, parent=caller, links=links)
    if span is None and rollout is not None:
        span = rollout.child(name, SpanKind.SERVER)
    if span is not None:
        span.attributes[names.HTTP_METHOD] = method
        if path in CALLS:
            span.attributes[names.HTTP_ROUTE] = path
    return span
