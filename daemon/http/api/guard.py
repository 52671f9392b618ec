"""`Guard`: ASGI middleware that authenticates, bounds connections and body sizes, and sets headers for browsers."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.http.api.login import notice
from rftd.daemon.http.api.problem import RefusedError, TooLargeError, answer
from rftd.daemon.http.api.routes import ASKER, BEARER
from rftd.daemon.trust.quota import QuotaUses
from rftd.ops import limits
from rftd.ops.errors import RftdError, UsageError

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Policy for pages: only files of this daemon, and no inline script or style."""
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer, for browsers."""


class Guard:
    """The middleware around the whole application: authenticates, counts connections, and limits the body size."""

    def __init__(self, app: ASGIApp, *, doorkeeper: Doorkeeper, uses: QuotaUses | None) -> None:
        self._app = app
        self._doorkeeper = doorkeeper
        self._uses = uses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answered = with_headers(send)
        try:
            # Checked before reading the body: an unauthenticated client must not make the daemon hold four megabytes
            # per refusal.
            bearer = scope[BEARER] = self._doorkeeper.bearer_of(scope)
            scope[ASKER] = None if bearer is None else bearer.asker
            if self._uses is None or bearer is None:
                await self._admit(scope, receive, answered)
                return
            with self._uses.connection(bearer.asker.name, bearer.asker.quota):
                await self._admit(scope, receive, answered)
        except _GoneError:
            # Only for the count of requests: nobody is there to read an answer, and a crowd may have gone at once.
            await send({"type": "http.response.start", "status": UsageError.http_status, "headers": []})
        except RefusedError as error:
            # A person gets words in place of JSON; a page that htmx asks for is told by the status alone.
            is_person = "text/html" in Headers(scope=scope).get("accept", "") and scope["method"] == "GET"
            refusal = notice("no link", status=error.http_status) if is_person else answer(error)
            await refusal(scope, receive, answered)
        except RftdError as error:
            await answer(error)(scope, receive, answered)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _within_size(Headers(scope=scope), receive)
        except RftdError as error:
            await answer(error)(scope, receive, send)
            return
        await self._app(scope, _Replay(body, receive), send)


def with_headers(send: Send) -> Send:
    """Wraps `send` to add `HEADERS` and Cache-Control to every response."""

    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, header_text in HEADERS.items():
                headers.setdefault(name, header_text)
            # Answers belong to one asker; a cache in between must not give them to another.
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return noted


async def _within_size(headers: Headers, receive: Receive) -> bytes:
    """Reads the whole body. Raises TooLargeError once the declared or received size is over the limit; _GoneError."""
    # A declared size saves reading; it may be missing (chunked) or false, so received bytes are counted too.
    declared = headers.get("content-length", "0")
    size = int(declared) if declared.isdigit() else 0
    body = bytearray()
    while size <= limits.REQUEST_SIZE_BYTES:
        message = await receive()
        if message["type"] != "http.request":  # the part received so far may be valid, and is not the intended body
            raise _GoneError
        body += message.get("body", b"")
        size = max(size, len(body))
        if not message.get("more_body", False):
            break
    if size > limits.REQUEST_SIZE_BYTES:
        raise TooLargeError(
            f"a body of {size} bytes or more is over the limit of {limits.REQUEST_SIZE_BYTES}",
            fix="an experiment file names datasets by path, and many tasks are added by several requests "
            "(rftd tasks add FILE)",
        )
    return bytes(body)


class _GoneError(Exception):
    """The client is gone, or was disconnected, before the end of its body."""


class _Replay:
    """A `receive` yielding an already read body, then later messages."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body = self._body
        self._body = None
        return {"type": "http.request", "body": body, "more_body": False}
