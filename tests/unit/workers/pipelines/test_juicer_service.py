"""Data-Juicer's protocol: the client against a fake service, whose answers are those of Trinity-RFT's."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pyarrow as pa
import pytest

from rftd.ops.errors import PipelineError
from rftd.streams.spec.task_pipeline import JuicerSpec
from rftd.workers.pipelines.juicer_service import JuicerService, figures_of

LENGTHS = ({"text_length_filter": {"min_len": 3}},)


class FakeJuicer:
    """A service that keeps rows with a long text, and records the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.session = 0
        self.release: str | None = "1.6.1"
        self.away = 0
        """Number of calls still answered with 503."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.calls.append(self.path)
                if fake.away:
                    fake.away -= 1
                    self.answer(503, b"{}")
                    return
                self.answer(200, json.dumps({"status": "healthy", "release": fake.release}).encode())

            def do_POST(self) -> None:
                fake.calls.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/create":
                    fake.created.append(json.loads(body))
                    if "unknown" in json.dumps(fake.created[-1]):
                        self.answer(400, b'{"error": "KeyError: unknown"}')
                        return
                    fake.session += 1
                    self.answer(200, json.dumps({"session_id": str(fake.session)}).encode())
                elif self.path == "/process_experience":
                    head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
                    message: Any = BytesParser().parsebytes(head + body)
                    fields = [field.get_payload(decode=True) for field in message.get_payload()]
                    if fields[0].decode() != str(fake.session):
                        self.answer(404, b'{"error": "no such session"}')
                        return
                    self.answer(200, processed(fields[1]), {"X-Metrics": '{"removed": 1}'})
                else:
                    self.answer(200, b"{}")

            def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, text in {"Content-Length": str(len(content)), **(headers or {})}.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Writes no lines."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def processed(body: bytes) -> bytes:
    with pa.ipc.open_stream(body) as reader:
        rows = reader.read_all().to_pylist()
    table = pa.Table.from_pylist(
        [{**row, "__dj__stats__": json.dumps({"text_len": len(row["text"])})} for row in rows if len(row["text"]) >= 3]
    )
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


@pytest.fixture
def fake() -> Iterator[FakeJuicer]:
    service = FakeJuicer()
    yield service
    service.server.shutdown()
    service.server.server_close()


class FakeTime:
    """A clock moved by pauses."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


Opened = Callable[..., JuicerService]


@pytest.fixture
def opened(fake: FakeJuicer) -> Opened:
    def open_service(
        operators: Sequence[dict[str, Any]] = LENGTHS, time: FakeTime | None = None, **spec: Any
    ) -> JuicerService:
        clock = time or FakeTime()
        settings = JuicerSpec(**({"server_url": fake.url} | spec))
        client = httpx.Client(trust_env=False, timeout=30)
        return JuicerService(settings, operators, environ={}, client=client, now=clock.now, pause=clock.pause)

    return open_service


def test_rows_go_as_arrow_and_come_back_with_figures(fake: FakeJuicer, opened: Opened) -> None:
    service = opened()
    rows, figures = service.process([{"text": "long enough", "row": 0}, {"text": "no", "row": 1}])
    assert [(row["row"], figures_of(row)) for row in rows] == [(0, {"text_len": 11.0})]
    assert figures == {"removed": 1.0}
    assert fake.created == [{"pipeline_type": "experience", "operators": list(LENGTHS), "np": 4}]
    service.process([{"text": "again"}])
    service.close()
    assert fake.calls == ["/health", "/create", "/process_experience", "/process_experience", "/close"]
    assert service.release == "1.6.1"


def test_an_absence_of_a_minute_is_waited_for(fake: FakeJuicer, opened: Opened) -> None:
    fake.away = 60
    time = FakeTime()
    rows, _ = opened(time=time).process([{"text": "long"}])
    assert len(rows) == 1
    assert time.now_s == 60


def test_a_longer_absence_is_an_error_with_the_address(opened: Opened) -> None:
    time = FakeTime()
    service = opened(time=time, server_url="http://127.0.0.1:9")
    with pytest.raises(PipelineError, match=r"http://127\.0\.0\.1:9 has not answered for 180 s"):
        service.process([{"text": "long"}])
    assert time.now_s == 180


def test_a_restarted_service_gets_a_new_session(fake: FakeJuicer, opened: Opened) -> None:
    service = opened()
    service.process([{"text": "long"}])
    fake.session += 1  # sessions of the earlier process are unknown
    rows, _ = service.process([{"text": "long"}])
    assert len(rows) == 1
    assert fake.calls.count("/create") == 2


@pytest.mark.parametrize("release", ["1.7.0", None])
def test_a_service_of_another_release_is_refused(fake: FakeJuicer, opened: Opened, release: str | None) -> None:
    service = opened()
    service.process([{"text": "long"}])
    fake.session += 1
    fake.release = release
    with pytest.raises(PipelineError, match=rf"is of release {release or 'unknown'}, not 1\.6\.1"):
        service.process([{"text": "long"}])
    with pytest.raises(PipelineError, match=r"not 1\.5"):
        opened(release="1.5").process([{"text": "long"}])


def test_an_operator_unknown_to_the_service_is_named(opened: Opened) -> None:
    with pytest.raises(PipelineError, match="refused with HTTP 400: KeyError: unknown"):
        opened([{"unknown": {}}]).process([{"text": "long"}])


def test_figures_are_read_in_the_form_of_each_release() -> None:
    assert figures_of({"__dj__stats__": {"a": 1, "b": "no", "c": True}}) == {"a": 1.0}
    assert figures_of({"__dj__stats__": '{"a": 0.5}'}) == {"a": 0.5}
    assert figures_of({}) == {}
