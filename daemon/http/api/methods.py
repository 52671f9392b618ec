"""`Methods`: HEAD is answered like GET without the body, and OPTIONS with the methods of the path."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_GET: Final = "GET"
"""Method whose answers HEAD repeats without a body."""


class Methods:
    """The innermost middleware: clients without access to a path learn nothing of its methods either."""

    def __init__(self, app: ASGIApp, *, served: FastAPI) -> None:
        """`app` answers the requests, `served` is the application whose document names the methods of each path."""
        self._app = app
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["type"] == "http" else ""
        if method not in ("HEAD", "OPTIONS") or not (methods := methods_of(self._served, scope["path"])):
            await self._app(scope, receive, send)
        elif method == "OPTIONS":
            allowed = sorted({*methods, "OPTIONS", *({"HEAD"} if _GET in methods else ())})
            headers = [(b"allow", ", ".join(allowed).encode())]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        elif _GET in methods:
            await self._app({**scope, "method": _GET}, receive, _Headless(send))
        else:
            await self._app(scope, receive, send)


def methods_of(served: FastAPI, path: str) -> list[str]:
    """Returns all methods of a path in the API's document; none for an unknown path."""
    if path == served.openapi_url:
        return [_GET]
    methods: set[str] = set()
    paths = served.openapi()["paths"]
    # Starlette's own 405 names only the methods of the first matching route, and paths have one route per method. A
    # path present literally in the document is that path, even if a pattern would match it too.
    for pattern, operations in paths.items() if path not in paths else [(path, paths[path])]:
        if compile_path(pattern)[0].match(path):
            methods.update(method.upper() for method in operations)
    return sorted(methods)


class _Headless:
    """A `send` transmitting only the head of an answer; an endless answer ends with its head."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._ended = False
        """True once the empty body after the answer's head was sent."""

    async def __call__(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            await self._send(message)
        elif not self._ended:
            self._ended = True
            await self._send({"type": "http.response.body", "body": b""})
