"""Requests to the daemon are spans: in the caller's trace, by the share, and whenever the daemon fails."""

from __future__ import annotations

from random import Random

import httpx
import pytest
from fastapi import FastAPI, Response
from synthetic.servers.kept_spans import KeptSpans

from rftd.daemon.http.api.app import Traced
from rftd.ops.clock import SystemClock
from rftd.ops.tracing.tracer import SpanKind, Tracer, current_traceparent

pytestmark = pytest.mark.anyio
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def client_of(sink: KeptSpans, ratio: float) -> httpx.AsyncClient:
    app = FastAPI()

    @app.get("/metrics")
    @app.get("/things/{name}")
    async def thing(name: str = "") -> str | None:
        if name == "broken":
            raise ZeroDivisionError(name)
        return current_traceparent()

    @app.post("/v1/experiments/{name}/pause")
    @app.get("/v1/experiments/{name}/why")
    async def pause(name: str) -> str | None:
        return current_traceparent()

    @app.get("/refusals")
    async def refusal() -> Response:
        return Response(status_code=409)

    app.add_middleware(Traced, tracer=Tracer(sink, clock=SystemClock(), random=Random(5), ratio=ratio))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://daemon")


async def test_a_caller_s_trace_goes_on_and_is_what_handlers_write() -> None:
    sink = KeptSpans()
    async with client_of(sink, 0.0) as client:
        said = (await client.get("/things/secret-name", headers={"traceparent": CALLER})).json()
        assert (await client.get("/things/x", headers={"traceparent": CALLER[:-1] + "0"})).json() is None
    (span,) = sink.spans
    assert said == span.context.traceparent
    assert said.split("-")[1] == CALLER.split("-")[1]
    assert f"{span.parent_id:016x}" == CALLER.split("-")[2]
    assert (span.name, span.kind, span.error) == ("GET /things/{name}", SpanKind.SERVER, "")
    assert "secret" not in str(span.attributes)


async def test_probes_begin_no_trace_and_strangers_words_are_no_names() -> None:
    sink = KeptSpans()
    async with client_of(sink, 1.0) as client:
        await client.get("/metrics")
        assert sink.spans == []
        await client.request("STRANGE", "/nowhere")
        await client.get("/refusals")
    assert [span.name for span in sink.spans] == ["_OTHER", "GET /refusals"]
    assert not any(span.error for span in sink.spans), "a client's mistakes are not the daemon's"


async def test_commands_are_traced_whatever_is_sampled_unless_their_caller_decides() -> None:
    sink = KeptSpans()
    async with client_of(sink, 0.0) as client:
        said = (await client.post("/v1/experiments/x/pause")).json()
        await client.get("/v1/experiments/x/why")
        await client.post("/v1/experiments/x/pause", headers={"traceparent": CALLER[:-1] + "0"})
    (span,) = sink.spans
    assert (span.name, said) == ("POST /v1/experiments/{name}/pause", span.context.traceparent)


async def test_a_failure_is_traced_whatever_is_sampled() -> None:
    sink = KeptSpans()
    async with client_of(sink, 0.0) as client:
        await client.get("/things/fine")
        assert (await client.get("/things/broken")).status_code == 500
    (span,) = sink.spans
    assert (span.name, span.error, span.attributes["http.response.status_code"]) == ("GET /things/{name}", "500", 500)
    assert span.start_ns <= span.end_ns
