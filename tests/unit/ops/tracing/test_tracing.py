"""Contexts, sampling, and the queue before a receiver that is away, slow, or refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from synthetic.servers.kept_spans import KeptSpans
from synthetic.servers.otlp_receiver import otlp_receiver
from synthetic.until import PATIENCE_S

from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConfigError, RolloutError
from rftd.ops.ids import derive
from rftd.ops.logs import configure, logger
from rftd.ops.tracing import conventions
from rftd.ops.tracing.exporter import SpanExporter
from rftd.ops.tracing.trace_context import TraceContext, exported, parsed, root_of
from rftd.ops.tracing.trace_options import TraceOptions, span_exporter, trace_options, tracing
from rftd.ops.tracing.tracer import SpanKind, Tracer, TraceSpan, current, current_traceparent


def tracer_of(sink: KeptSpans, ratio: float = 1.0) -> Tracer:
    return Tracer(sink, clock=SystemClock(), random=Random(3), ratio=ratio)


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", False),
        ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes", True),
        (None, None),
        ("", None),
        ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", None),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
        ("00-" + "a" * 100_000, None),
    ],
)
def test_a_header_is_read_as_w3c_has_it(text: str | None, sampled: bool | None) -> None:
    found = parsed(text)
    assert (found is None) == (sampled is None)
    if found is not None and text is not None:
        assert found.sampled is sampled
        assert found.traceparent[2:] == text[2:55]


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_a_context_comes_back_from_its_header(trace_id: int, span_id: int, sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, sampled)
    assert parsed(context.traceparent) == context


@given(
    text=st.one_of(
        st.builds(TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans()).map(
            lambda each: each.traceparent
        ),
        st.from_regex(r"[ ]?0[01]-[0-9a-f]{31,32}-[0-9a-f]{16}-[0-9a-fA-F]{1,2}(-[0-9a-f]{0,3})?[ ]?", fullmatch=True),
        st.text(max_size=60),
    )
)
def test_what_is_exported_is_seen_without_parsing_the_rest(text: str) -> None:
    context = parsed(text)
    assert exported(text) == (context if context is not None and context.sampled else None)


def test_the_share_of_traces_is_the_ratio_and_the_same_everywhere() -> None:
    causes = [derive(UUID(int=7), "lease", number) for number in range(20_000)]
    one, other = tracer_of(KeptSpans(), 0.1), tracer_of(KeptSpans(), 0.1)
    sampled = [cause for cause in causes if one.root(cause).sampled]
    assert 0.09 < len(sampled) / len(causes) < 0.11
    assert [cause for cause in causes if other.root(cause).sampled] == sampled
    assert not any(tracer_of(KeptSpans(), 0.0).root(cause).sampled for cause in causes)
    assert all(tracer_of(KeptSpans(), 1.0).root(cause).sampled for cause in causes)
    assert len({root_of(cause) for cause in causes}) == len(causes)


def test_what_is_wanted_is_what_begins() -> None:
    tracer = tracer_of(KeptSpans(), ratio=0.3)
    wanted = 0
    for number in range(300):
        cause = derive(UUID(int=1), "cause", number)
        assert tracer.wants(None, cause) is (tracer.begin("a", cause=cause) is not None)
        wanted += tracer.wants(None, cause)
        for sampled in (True, False):
            parent = TraceContext(1 + number, 1, sampled)
            assert tracer.wants(parent, cause) is (tracer.begin("a", parent=parent, cause=cause) is not None)
    assert 40 < wanted < 140


def test_a_caller_decides_and_errors_are_always_traced() -> None:
    sink = KeptSpans()
    everything, nothing = tracer_of(sink, 1.0), tracer_of(sink, 0.0)
    caller = TraceContext(1, 2, True)
    span = nothing.begin("served", SpanKind.SERVER, parent=caller)
    assert span is not None
    assert (span.context.trace_id, span.parent_id, span.remote_parent) == (1, 2, True)
    assert everything.begin("served", parent=caller._replace(sampled=False)) is None
    assert nothing.begin("rollout") is None
    assert nothing.always("step").context.sampled
    kept = nothing.begin("error", parent=caller._replace(sampled=False), always=True)
    assert kept is not None and kept.context.sampled


def test_a_block_is_current_and_tells_its_error_by_type_alone() -> None:
    sink = KeptSpans()
    assert (current(), current_traceparent()) == (None, None)
    with pytest.raises(RolloutError), tracer_of(sink).always("outer") as outer:
        assert current_traceparent() == outer.context.traceparent
        with outer.child("inner") as inner:
            raise RolloutError("the prompt was: my secret")
    assert current() is None
    assert sink.spans == [inner, outer]
    assert inner.parent_id == outer.context.span_id
    assert {span.error for span in sink.spans} == {RolloutError.code}
    assert not any("secret" in str(span.attributes) for span in sink.spans)
    outer.end()
    assert len(sink.spans) == 2, "a span ends once"


def test_log_lines_name_the_open_span(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    try:
        configure()
        with tracer_of(KeptSpans()).always("outer") as span:
            logger().info("inside")
            span.end()
            logger().info("after")  # as a task that outlives the rollout in which it began
        logger().info("outside")
    finally:
        structlog.configure(**before)
    inside, after, outside = capsys.readouterr().err.splitlines()
    assert f'"trace_id": "{span.context.trace_id:032x}"' in inside
    assert "trace_id" not in after + outside


def spans_of(count: int) -> list[TraceSpan]:
    tracer = tracer_of(KeptSpans())
    return [tracer.always(f"span {number}") for number in range(count)]


def test_a_full_queue_drops_and_counts_and_nobody_waits() -> None:
    let_go = threading.Event()
    taken: list[int] = []

    def send(spans: Sequence[TraceSpan]) -> bool:
        let_go.wait(60)
        taken.append(len(spans))
        return True

    with capture_logs() as lines:
        exporter = SpanExporter(lambda: send, logger(), capacity=10, interval_s=0.01)
        for span in spans_of(2000):
            exporter.put(span)
        dropped = exporter.dropped_total
        assert dropped >= 2000 - 10 - 512
        let_go.set()
        exporter.close(60.0)
    assert sum(taken) == 2000 - exporter.dropped_total
    said = [line for line in lines if line["event"] == "traces.dropped"]
    assert 1 <= len(said) <= 12, "one line for each doubling"


def test_a_sender_that_raises_ends_no_thread() -> None:
    calls: list[int] = []

    def connect() -> None:
        calls.append(1)
        raise ImportError("there is no SDK on this node")

    with capture_logs():
        exporter = SpanExporter(connect, logger(), interval_s=0.001)  # type: ignore[arg-type]
        for span in spans_of(3):
            exporter.put(span)
            count = exporter.dropped_total
            while exporter.dropped_total == count:
                pass
        exporter.close()
    assert (exporter.dropped_total, len(calls)) == (3, 3)


@pytest.mark.parametrize("status", [500, 404, 200])
def test_a_receiver_that_refuses_costs_its_spans_and_nothing_else(status: int) -> None:
    with otlp_receiver() as receiver, capture_logs():
        receiver.status = status
        exporter = span_exporter(TraceOptions(url=receiver.url + "/v1/traces"), "test", logger())
        for span in spans_of(20):
            span.attributes["tuple"] = ("a", "b")
            span.end(span.start_ns + 5)
            exporter.put(span)
        exporter.close(60.0)
        assert exporter.dropped_total == (0 if status == 200 else 20)
        assert len(receiver.spans) == (20 if status == 200 else 0)
        if status == 200:
            found = receiver.spans[0]
            assert (found.service, found.end_ns - found.start_ns) == ("rftd-test", 5)
            assert found.attributes["tuple"] == ("a", "b")


def test_a_receiver_that_does_not_answer_delays_no_end() -> None:
    with otlp_receiver() as receiver, capture_logs():
        receiver.answers.clear()
        exporter = span_exporter(TraceOptions(url=receiver.url + "/v1/traces"), "test", logger())
        for span in spans_of(600):
            exporter.put(span)
        receiver.until(lambda: receiver.requests)
        exporter.close(0.0)
        assert exporter.dropped_total == 600 - 512, "what waits is given up; what is on its way may arrive"


def test_an_answer_without_end_is_not_read() -> None:
    """A receiver that is something else may answer a gigabyte, which each process held in its memory."""
    with otlp_receiver() as receiver, capture_logs():
        receiver.answer_size_bytes = 64 * 2**20
        exporter = span_exporter(TraceOptions(url=receiver.url + "/v1/traces"), "test", logger())
        for span in spans_of(20):
            exporter.put(span)
        exporter.close(PATIENCE_S)
        assert receiver.answered.wait(PATIENCE_S)
        assert receiver.said_bytes < 32 * 2**20, "what fits into the buffers of both sides"
        assert exporter.dropped_total == 0, "they arrived"


def test_headers_for_the_receiver_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
    with otlp_receiver() as receiver:
        options = trace_options(receiver.url, 1.0)
        assert options is not None
        with tracing(options, "test", clock=SystemClock(), logger=logger()) as tracer:
            assert tracer is not None
            tracer.always("one").end()
        receiver.until(lambda: receiver.spans)
    assert receiver.headers[0]["authorization"] == "Bearer abc"


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("localhost:4318", "OTLP"),
        ("ftp://x", "OTLP"),
        ("http://me:pw@host:4318", "secret"),
        ("http://h?key=1", "secret"),
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url: str, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        trace_options(url, 0.5)
    assert field in refused.value.what
    assert refused.value.field == "--traces"
    assert "pw" not in f"{refused.value.what}{refused.value.fix}"


def test_addresses_are_completed_and_none_means_off() -> None:
    assert trace_options(None, 0.5) is None
    assert trace_options("", 0.5) is None
    for url, full in (("http://h:4318", "http://h:4318/v1/traces"), ("https://h/otlp/x", "https://h/otlp/x")):
        options = trace_options(url, 0.5)
        assert options is not None and options.url == full


def test_nothing_of_opentelemetry_is_imported_while_tracing_is_off() -> None:
    program = (
        "import sys, rftd.workers.process, rftd.workers.rollout.explorer, rftd.workers.training.trainer;"
        "import rftd.daemon.cli.verbs.serve, rftd.daemon.cli.verbs.worker;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=240, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_conventions_are_pinned() -> None:
    """Names that dashboards and queries use: a change is one that users notice."""
    assert conventions.messaging("send", "rftd.tasks", 3) == {
        "messaging.system": "rftd",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "rftd.tasks",
        "messaging.destination.partition.id": "3",
    }
    assert conventions.generative("chat") == {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "rftd"}
    ours = {name: value for name, value in vars(conventions).items() if isinstance(value, str) and name.isupper()}
    standard = {value for value in ours.values() if value.startswith(("gen_ai.", "messaging.", "http.", "error."))}
    assert standard == {
        "error.type",
        "gen_ai.agent.name",
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.max_tokens",
        "gen_ai.request.model",
        "gen_ai.request.temperature",
        "gen_ai.request.top_p",
        "gen_ai.response.finish_reasons",
        "gen_ai.tool.name",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.workflow.name",
        "http.request.method",
        "http.response.status_code",
        "http.route",
        "messaging.destination.name",
        "messaging.destination.partition.id",
        "messaging.operation.name",
        "messaging.operation.type",
        "messaging.system",
    }
    assert len(set(ours.values())) == len(ours)
