"""`HubStandIn`: the part of the Hugging Face hub's HTTP interface that a download uses, on loopback."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/(revision|tree)/([^/]+)")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class HubStandIn:
    """Repositories of one commit each: `models/OWNER/NAME` and `datasets/OWNER/NAME` with the bytes of their files."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        """Method and path of each request."""
        self.broken: set[str] = set()
        """Files that break off after their first half, once."""
        self.gated: set[str] = set()
        """Repositories that ask for terms to be accepted."""
        self.url = ""

    def paths(self) -> list[str]:
        """The files whose bytes were sent."""
        return [
            request.rpartition("/")[2]
            for request in self.requests
            if request.startswith("GET") and "/resolve/" in request
        ]

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answers until the block ends."""
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _answer(stand_in, self, body=True)

            def do_HEAD(self) -> None:
                _answer(stand_in, self, body=False)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing: standard error is the test's."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, name="hub-stand-in")
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _answer(hub: HubStandIn, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
    path = unquote(urlsplit(handler.path).path)
    hub.requests.append(f"{handler.command} {path}")
    if asked := _API.fullmatch(path):
        kind, name, what, revision = asked.groups()
        _answer_api(hub, handler, f"{kind}/{name}", what, revision)
        return
    asked = _FILE.fullmatch(path)
    files = hub.repositories.get(f"{'datasets' if asked and asked[1] else 'models'}/{asked[2]}") if asked else None
    if asked is None or files is None or asked[4] not in files:
        _send(handler, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        return
    content = files[asked[4]]
    headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
    if body and asked[4] in hub.broken:
        hub.broken.discard(asked[4])
        content_sent = content[: len(content) // 2]
        _send(handler, 200, content_sent, headers, size=len(content))
        handler.close_connection = True
        return
    start = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    if body and start:
        span = f"bytes {start[1]}-{len(content) - 1}/{len(content)}"
        _send(handler, 206, content[int(start[1]) :], {**headers, "Content-Range": span})
        return
    _send(handler, 200, content if body else b"", headers, size=len(content))


def _answer_api(hub: HubStandIn, handler: BaseHTTPRequestHandler, repository: str, what: str, revision: str) -> None:
    files = hub.repositories.get(repository)
    if repository in hub.gated:
        _send(handler, 403, b"{}", {"X-Error-Code": "GatedRepo"})
    elif files is None:
        _send(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
    elif revision not in ("main", COMMIT):
        _send(handler, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
    elif what == "revision":
        siblings = [{"rfilename": file} for file in files]
        _send(
            handler, 200, json.dumps({"id": repository.partition("/")[2], "sha": COMMIT, "siblings": siblings}).encode()
        )
    else:
        tree = [
            {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for file, content in files.items()
        ]
        _send(handler, 200, json.dumps(tree).encode())


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    content: bytes,
    headers: dict[str, str] | None = None,
    *,
    size: int | None = None,
) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content) if size is None else size))
    handler.end_headers()
    handler.wfile.write(content)
