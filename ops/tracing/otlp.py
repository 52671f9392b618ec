"""Spans as OTLP over HTTP, by OpenTelemetry's SDK. Importing this imports the SDK: it happens where spans are sent.

The environment's `OTEL_EXPORTER_OTLP_HEADERS`, `..._CERTIFICATE` and `..._COMPRESSION` hold, as for any program that
exports by that SDK: a key for the receiver stays there, and is in no option of ours.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanKind as SdkKind

from rftd.ops.tracing.exporter import Send
from rftd.ops.tracing.trace_context import TraceContext
from rftd.ops.tracing.tracer import NO_PARENT, SpanKind, TraceSpan

TIMEOUT_S: Final = 5.0
"""The longest wait for the receiver's answer to one batch, tries included."""
ANSWER_SIZE_BYTES: Final = 4096
"""The most that is read of the receiver's answer. Most have less than a hundred bytes."""
_KINDS: Final = {kind: SdkKind[kind.name] for kind in SpanKind}
_UNSET: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)


def otlp_sender(url: str, resource: Mapping[str, str], *, release: str) -> Send:
    """The function that sends spans of this `resource` to the receiver at `url`."""
    # It would write a line for each try at each batch; what was dropped is counted and said by the exporter.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S, session=_session())
    ours = _OwnResource(dict(resource))
    scope = InstrumentationScope("rftd", release)

    def send(spans: Sequence[TraceSpan]) -> bool:
        return exporter.export([_readable(span, ours, scope) for span in spans]) is SpanExportResult.SUCCESS

    return send


def _session() -> requests.Session:
    """A session that does not read an answer of any length, as the SDK's own does: its status says it all."""
    session = requests.Session()
    session.stream = True
    session.hooks["response"].append(_read_little)
    return session


def _read_little(answer: requests.Response, **_: object) -> None:
    """Reads an answer of the usual length, so that the connection is used again; closes it at one without an end."""
    until_s = time.monotonic() + TIMEOUT_S
    # Byte by byte: a read of more waits until all of it is there, and a receiver may send one each second.
    for length, _byte in enumerate(answer.raw.stream(1, decode_content=False), start=1):
        if length > ANSWER_SIZE_BYTES or time.monotonic() > until_s:
            answer.close()
            return


class _OwnResource(Resource):
    """The one resource of this process; the SDK hashes it for each span, by writing all of it as JSON."""

    def __hash__(self) -> int:
        return id(self)


def _readable(span: TraceSpan, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    parent = TraceContext(span.context.trace_id, span.parent_id, True)
    return ReadableSpan(
        span.name,
        context=_context(span.context, remote=False),
        parent=None if span.parent_id == NO_PARENT else _context(parent, remote=span.remote_parent),
        resource=resource,
        attributes=span.attributes,
        links=[Link(_context(link, remote=True)) for link in span.links],
        kind=_KINDS[span.kind],
        status=_ERROR if span.error else _UNSET,
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=scope,
    )


def _context(context: TraceContext, *, remote: bool) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=remote, trace_flags=flags)
