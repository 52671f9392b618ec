"""Calls of an agent program are in the trace of their rollout, or go on in the caller's."""

from __future__ import annotations

from random import Random

import pytest
from synthetic.models.scripted_engine import ScriptedEngine, asking, running_endpoint, user
from synthetic.servers.kept_spans import KeptSpans

from rftd.ops.clock import SystemClock
from rftd.ops.tracing.tracer import SpanKind, Tracer, TraceSpan
from rftd.workers.api import tool_call

pytestmark = pytest.mark.anyio
CHAT = "/chat/completions"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_call_is_below_its_rollout_and_a_caller_s_trace_goes_on() -> None:
    sink = KeptSpans()
    tracer = Tracer(sink, clock=SystemClock(), random=Random(1), ratio=0.0)
    async with running_endpoint(tracer) as endpoint:
        with tracer.always("rollout") as rollout:
            async with asking(endpoint, ScriptedEngine(["one", "two"])) as asker:
                with tool_call("search") as tool:
                    assert isinstance(tool, TraceSpan)
                assert (await asker.post(CHAT, {"messages": [user("a")]})).status_code == 200
                said = await asker.post(CHAT, {"messages": [user("my secret")]}, traceparent=CALLER)
                assert said.status_code == 200
                refused = await asker.post(CHAT, {"messages": 3}, traceparent="nonsense")
                assert refused.status_code == 400
    assert (tool.name, tool.parent_id) == ("execute_tool search", rollout.context.span_id)
    served = [span for span in sink.spans if span.kind is SpanKind.SERVER]
    assert [span.name for span in served] == ["POST /v1/chat/completions"] * 3
    assert [span.attributes["http.response.status_code"] for span in served] == [200, 200, 400]
    assert not any(span.error for span in served), "a client's mistake is none of the server's"
    below, of_caller, _ = served
    assert below.parent_id == rollout.context.span_id
    assert (f"{of_caller.context.trace_id:032x}", f"{of_caller.parent_id:016x}") == tuple(CALLER.split("-")[1:3])
    assert list(of_caller.links) == [rollout.context]
    calls = [span for span in sink.spans if span.name == "chat tiny"]
    assert [call.parent_id for call in calls] == [below.context.span_id, of_caller.context.span_id]
    assert calls[0].attributes["gen_ai.usage.output_tokens"] > 0
    assert not any("secret" in str(span.attributes) for span in sink.spans)


async def test_an_untraced_rollout_goes_on_in_a_caller_s_trace_alone() -> None:
    sink = KeptSpans()
    tracer = Tracer(sink, clock=SystemClock(), random=Random(1), ratio=0.0)
    async with running_endpoint(tracer) as endpoint, asking(endpoint, ScriptedEngine(["one"])) as asker:
        assert (await asker.post(CHAT, {"messages": [user("a")]})).status_code == 200
        assert sink.spans == []
        assert (await asker.post(CHAT, {"messages": [user("b")]}, traceparent=CALLER)).status_code == 200
    assert [span.name for span in sink.spans] == ["chat tiny", "POST /v1/chat/completions"]
    assert {f"{span.context.trace_id:032x}" for span in sink.spans} == {CALLER.split("-")[1]}
