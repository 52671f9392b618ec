"""A program that answers at a daemon's address and is none, or one of another release; and its answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HANGS_UP = 0
"""The status of an answer that never comes: the connection is closed."""


@dataclass
class Said:
    """One answer of a stranger."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    after: threading.Event | None = None
    """What it waits for before it answers."""


@dataclass
class Stranger:
    """A program that gives the same answers to whoever asks, one after the other, the last for ever."""

    url: str
    answers: list[Said]
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """The body of each request that was answered with success."""


@contextmanager
def stranger_at_work() -> Iterator[Stranger]:
    """A server on a loopback port."""
    told = Stranger("", [])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            said = told.answers.pop(0) if len(told.answers) > 1 else told.answers[0]
            if 200 <= said.status < 300:
                told.bodies.append(body)
            if said.after is not None:
                said.after.wait()
            if said.status == HANGS_UP:
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        told.url = f"http://127.0.0.1:{server.server_port}"
        yield told
        server.shutdown()


STRANGE = {
    "a web page": Said(200, b"<html>hello</html>", {"Content-Type": "text/html"}),
    "nothing": Said(200, b""),
    "no content": Said(204, b""),
    "a redirect": Said(302, b"", {"Location": "/login"}),
    "a list": Said(200, b"[]", {"Content-Type": "application/json"}),
    "another object": Said(200, b"{}", {"Content-Type": "application/json"}),
    "no text": Said(200, b"\xff\xfe\xfd", {"Content-Type": "application/json"}),
    "no end": Said(200, b"[" * 5000 + b"]" * 5000, {"Content-Type": "application/json"}),
    "damaged compression": Said(200, b"xx", {"Content-Encoding": "gzip"}),
    "an error of its own": Said(404, b"what?"),
    "an error in JSON": Said(500, b'{"detail": "Internal Server Error"}'),
    "a problem of another program": Said(422, b'{"type": "about:blank", "status": 422}'),
    "an endless problem": Said(500, b'{"x": ' + b"[" * 5000),
}
