"""`HttpCall`: one request for an API in ASGI's form: its body within limits, its hang-up, and the reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from rftd.ops import limits
from rftd.workers.generation.endpoint.call_error import CallError

MAX_DISCARDED_SIZE_BYTES = 16 * limits.ENDPOINT_BODY_SIZE_BYTES
"""Bytes read and discarded from a refused client still sending, to let the client see the reason; then it is cut off.
"""


class HttpCall:
    """One HTTP request, and its reply: a complete body, a stream of events, or an error."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`scope`, `receive` and `send` are those of ASGI."""
        self.method: str = scope["method"]
        """Method of the request."""
        self.path: str = scope["path"]
        """Path of the request."""
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        """Headers of the request, with names in lower case."""
        self._receive = receive
        self._send = send
        self._read = False
        """True once no more of the body will be read: it is complete, far too large, or too late."""
        self.status = 200
        """HTTP status of the reply, once begun."""
        self.replied = False
        """True once the reply has begun."""
        self._streaming = False
        """True while the reply is an unfinished stream of events."""
        self._gone = False
        """True once the client hung up."""

    @property
    def key(self) -> bytes:
        """API key from the header used by OpenAI's or Anthropic's clients; empty without one."""
        scheme, _, token = self.headers.get(b"authorization", b"").partition(b" ")
        return token.strip() if scheme.lower() == b"bearer" else self.headers.get(b"x-api-key", b"").strip()

    async def body(self) -> bytes:
        """Reads the complete body. Raises CallError if it is too large, or takes longer than `limits.ENDPOINT_BODY_S`
        seconds.
        """
        try:
            async with asyncio.timeout(limits.ENDPOINT_BODY_S):
                return await self._receive_body()
        except TimeoutError:
            self._read = True  # never wait again for the rest
            problem = f"the body did not arrive within {limits.ENDPOINT_BODY_S:g} s"
            raise CallError(408, problem, reason="request_timeout") from None

    async def _receive_body(self) -> bytes:
        """Reads the body up to the limit. Raises CallError for a larger body, or if the client hung up."""
        body = bytearray()
        size_bytes = 0
        while not self._read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._read = self._gone = True
                raise CallError(400, "the client hung up before its body was complete")
            chunk = message.get("body", b"")
            size_bytes += len(chunk)
            if size_bytes <= limits.ENDPOINT_BODY_SIZE_BYTES:
                body += chunk
            self._read = not message.get("more_body", False) or size_bytes > MAX_DISCARDED_SIZE_BYTES
        if size_bytes > limits.ENDPOINT_BODY_SIZE_BYTES:
            problem = f"a body of {size_bytes} bytes or more is over the limit of {limits.ENDPOINT_BODY_SIZE_BYTES}"
            raise CallError(413, problem, reason="request_too_large")
        return bytes(body)

    async def hung_up(self) -> None:
        """Returns when the client hung up. The body must have been read."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                return

    async def answer(self, body: bytes, *, media_type: bytes = b"application/json") -> None:
        """Replies with a body of JSON, or of another media type."""
        await self._reply_whole(200, body, media_type)

    async def stream(self, events: Iterable[bytes]) -> None:
        """Replies with server-sent events, or with the last of them."""
        await self.push(events)
        await self.end()

    async def push(self, events: Iterable[bytes]) -> None:
        """Sends server-sent events, and starts the reply with the first ones."""
        for event in events:
            if not self.replied:
                self._streaming = True
                await self._start_reply(200, b"text/event-stream; charset=utf-8")
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def end(self) -> None:
        """Ends a reply of events with an empty last chunk."""
        self._streaming = False
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, error: CallError) -> None:
        """Replies with an error object, in a stream as its last event; does nothing once the client hung up."""
        if not self.replied:
            with contextlib.suppress(CallError):
                await self.body()  # the unread part of the body
        if self._gone:
            return
        if self._streaming:
            await self.stream([error.as_event()])
        elif not self.replied:
            await self._reply_whole(error.status, error.body())

    async def _reply_whole(self, status: int, body: bytes, media_type: bytes = b"application/json") -> None:
        """Replies with a complete body."""
        await self._start_reply(status, media_type, (b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.body", "body": body})

    async def _start_reply(self, status: int, media_type: bytes, *more: tuple[bytes, bytes]) -> None:
        """Sends status and headers of the reply."""
        self.replied = True
        self.status = status
        headers = [(b"content-type", media_type), (b"cache-control", b"no-store"), *more]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 429:
            headers.append((b"retry-after", b"1"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
