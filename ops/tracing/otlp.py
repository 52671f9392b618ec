"""Spans as OTLP over HTTP, by OpenTelemetry's SDK. Importing the module imports the SDK: only senders of spans do.

The environment's `OTEL_EXPORTER_OTLP_HEADERS`, `..._CERTIFICATE` and `..._COMPRESSION` apply, as for any program
exporting with the SDK: a key for the receiver stays there, and is in no option of rftd.
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
"""Maximum seconds for the receiver's answer to one batch, including retries."""
ANSWER_SIZE_BYTES: Final = 4096
"""Maximum bytes read of the receiver's answer. Most answers have less than a hundred bytes."""
_KINDS: Final = {kind: SdkKind[kind.name] for kind in SpanKind}
"""Kinds of spans in the SDK's form."""
_UNSET: Final = Status(StatusCode.UNSET)
"""Status of a span without an error."""
_ERROR: Final = Status(StatusCode.ERROR)
"""Status of a failed span."""


def otlp_sender(url: str, resource: Mapping[str, str], *, release: str) -> Send:
    """Returns the function for sending spans of `resource` to the receiver at `url`."""
    # The SDK would log each attempt at each batch; dropped spans are counted and reported by the exporter.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S, session=_session())
    ours = _OwnResource(dict(resource))
    scope = InstrumentationScope("rftd", release)

    def send(spans: Sequence[TraceSpan]) -> bool:
        return exporter.export([_readable(span, ours, scope) for span in spans]) is SpanExportResult.SUCCESS

    return send


def _session() -> requests.Session:
    """Returns a session that, unlike the SDK's own, does not read answers of arbitrary length: the status is enough."""
    session = requests.Session()
    session.stream = True
    session.hooks["response"].append(_read_little)
    return session


def _read_little(answer: requests.Response, **_: object) -> None:
    """Reads an answer of the usual length, so the connection is reused; closes the connection for a longer answer."""
    until_s = time.monotonic() + TIMEOUT_S
    # Byte by byte: a larger read waits for all bytes, and a receiver may send a byte each second.
    for length, _byte in enumerate(answer.raw.stream(1, decode_content=False), start=1):
        if length > ANSWER_SIZE_BYTES or time.monotonic() > until_s:
            answer.close()
            return


class _OwnResource(Resource):
    """The process's only resource, hashed by identity; the SDK's hash writes the whole resource as JSON per span."""

    def __hash__(self) -> int:
        return id(self)


def _readable(span: TraceSpan, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """Converts a span to the SDK's form."""
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
    """Converts a span's context to the SDK's form."""
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=remote, trace_flags=flags)
