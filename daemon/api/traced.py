"""`Traced`: a span for each request, in the caller's trace if it brings one."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.span import SpanKind
from rftd.ops.tracing.trace_context import parsed
from rftd.ops.tracing.tracer import Tracer

PROBES: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""Asked by machines every few seconds: no trace begins with them."""

COMMANDS: Final = "/v1/experiments"
"""The beginning of every path whose requests other than GET change an experiment: they are always traced."""


class Traced:
    """A layer within the guard: a stranger cannot have spans made."""

    def __init__(self, app: ASGIApp, *, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = parsed(Headers(scope=scope).get("traceparent"))
        began_ns = self._tracer.now_ns()
        method = names.http_method(scope["method"])
        looked_at = caller is not None or scope["path"] not in PROBES
        # A command is rare, and what it becomes is in its trace: a pause must not be missed.
        always = caller is None and method != "GET" and scope["path"].startswith(COMMANDS)
        span = self._tracer.begin(method, SpanKind.SERVER, parent=caller, always=always) if looked_at else None
        status = 500  # of a request whose handler raised before it answered

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            if span is None:
                await self._app(scope, receive, noted)
            else:
                with span.active():
                    await self._app(scope, receive, noted)
        finally:
            if span is None and status >= 500:
                # An error is traced whatever is sampled; what it did meanwhile is not.
                span = self._tracer.always(method, SpanKind.SERVER, parent=caller)
                span.start_ns = began_ns
            if span is not None:
                # The router writes the route that it chose into the scope, whose `path` holds names of experiments.
                route = getattr(scope.get("route"), "path", None)
                span.name = method if route is None else f"{method} {route}"
                span.attributes[names.HTTP_METHOD] = method
                span.attributes[names.HTTP_STATUS] = status
                if route is not None:
                    span.attributes[names.HTTP_ROUTE] = route
                if status >= 500:
                    span.fail(str(status))
                span.end()
