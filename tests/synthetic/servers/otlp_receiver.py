"""A receiver of OTLP over HTTP, in the test's process: it decodes what arrives, refuses it, or does not answer."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from synthetic.until import PATIENCE_S, poll

_PIECE = b"x" * 65536


class ReceivedSpan:
    """A span as it arrived."""

    def __init__(self, service: str, span: Any) -> None:
        self.service = service
        self.name: str = span.name
        self.kind: int = span.kind
        self.trace: str = span.trace_id.hex()
        self.id: str = span.span_id.hex()
        self.parent: str = span.parent_span_id.hex()
        self.links = {(link.trace_id.hex(), link.span_id.hex()) for link in span.links}
        self.attributes = {each.key: _value(each.value) for each in span.attributes}
        self.failed: bool = span.status.code == 2
        self.told: str = span.status.message
        self.start_ns: int = span.start_time_unix_nano
        self.end_ns: int = span.end_time_unix_nano

    def __repr__(self) -> str:
        return f"{self.service}:{self.name} {self.id} below {self.parent or '-'} in {self.trace[:6]} {self.attributes}"


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind)


class OtlpReceiver:
    """The server; `url` is what `--traces` takes."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.requests = 0
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.status = 200
        self.answer_size_bytes = 0
        """The length that its answers promise; it sends them for as long as somebody reads."""
        self.said_bytes = 0
        """What it could send of its newest answer."""
        self.answers = threading.Event()
        """While it is not set no request is answered."""
        self.answers.set()
        self.answered = threading.Event()
        """Set once it has answered, or nobody reads on."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.requests += 1
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.answers.wait()
                if receiver.status == 200 and self.path == "/v1/traces":
                    receiver.take(body)
                self.send_response(receiver.status)
                self.send_header("content-length", str(receiver.answer_size_bytes))
                self.end_headers()
                receiver.said_bytes = 0
                with suppress(OSError):
                    while receiver.said_bytes < receiver.answer_size_bytes:
                        receiver.said_bytes += self.wfile.write(_PIECE)
                receiver.answered.set()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, body: bytes) -> None:
        """Decodes a request."""
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [ReceivedSpan(about["service.name"], span) for span in scope.spans]

    def named(self, name: str) -> list[ReceivedSpan]:
        """The spans so far whose name begins so."""
        return [span for span in self.spans if span.name == name or span.name.startswith(f"{name} ")]

    def above(self, span: ReceivedSpan) -> list[ReceivedSpan]:
        """The span and those above it, up to the root or the first that never arrived."""
        spans = {each.id: each for each in self.spans}
        path = [span]
        while (parent := spans.get(path[-1].parent)) is not None:
            path.append(parent)
        return path

    def until(self, there: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Returns once it is there."""
        poll(lambda: bool(there()), timeout_s, told=lambda: f"of {len(self.spans)} spans none fits: {self.spans[-5:]}")

    def close(self) -> None:
        """Ends it."""
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver while the block runs."""
    receiver = OtlpReceiver()
    try:
        yield receiver
    finally:
        receiver.close()
