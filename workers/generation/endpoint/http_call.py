"""`HttpCall`: one request for an API, as ASGI has it: its body within limits, its hang-up, and the reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from rftd.ops import limits
from rftd.workers.generation.endpoint.call_error import CallError

THROWN_AWAY_SIZE_BYTES = 16 * limits.ENDPOINT_BODY_SIZE_BYTES
"""A client that is refused while it still sends would not see why; beyond this it is cut off."""


class HttpCall:
    """One request and its reply."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self._read = False
        self.status = 200
        """The status of the reply, once that has begun."""
        self.replied = False
        """True once the reply has begun."""
        self._telling = False
        """True while the reply is events, of which more may come."""
        self._gone = False
        """True once the client hung up."""

    @property
    def key(self) -> bytes:
        """The key that it carries, where OpenAI's or Anthropic's clients put it; empty without one."""
        scheme, _, given = self.headers.get(b"authorization", b"").partition(b" ")
        return given.strip() if scheme.lower() == b"bearer" else self.headers.get(b"x-api-key", b"").strip()

    async def body(self) -> bytes:
        """The whole body. Raises CallError if it is over the limit, or does not come in `limits.ENDPOINT_BODY_S`."""
        try:
            async with asyncio.timeout(limits.ENDPOINT_BODY_S):
                return await self._received()
        except TimeoutError:
            self._read = True  # nobody waits for the rest of it again
            what = f"the body did not arrive within {limits.ENDPOINT_BODY_S:g} s"
            raise CallError(408, what, reason="request_timeout") from None

    async def _received(self) -> bytes:
        kept = bytearray()
        size_bytes = 0
        while not self._read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._read = self._gone = True
                raise CallError(400, "the client hung up before its body was complete")
            chunk = message.get("body", b"")
            size_bytes += len(chunk)
            if size_bytes <= limits.ENDPOINT_BODY_SIZE_BYTES:
                kept += chunk
            self._read = not message.get("more_body", False) or size_bytes > THROWN_AWAY_SIZE_BYTES
        if size_bytes > limits.ENDPOINT_BODY_SIZE_BYTES:
            what = f"a body of {size_bytes} bytes or more is over the limit of {limits.ENDPOINT_BODY_SIZE_BYTES}"
            raise CallError(413, what, reason="request_too_large")
        return bytes(kept)

    async def hung_up(self) -> None:
        """Returns when the client is gone. The body must have been read."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                return

    async def answer(self, body: bytes, *, media_type: bytes = b"application/json") -> None:
        """Replies with a text, which is JSON unless it is said to be another."""
        await self._whole(200, body, media_type)

    async def stream(self, events: Iterable[bytes]) -> None:
        """Replies with server-sent events, or with the last of them."""
        await self.push(events)
        await self.end()

    async def push(self, events: Iterable[bytes]) -> None:
        """Sends server-sent events; the reply begins with the first."""
        for event in events:
            if not self.replied:
                self._telling = True
                await self._start(200, b"text/event-stream; charset=utf-8")
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def end(self) -> None:
        """Ends a reply of events."""
        self._telling = False
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, error: CallError) -> None:
        """Replies with an error object, as the last event of a reply that has begun as events; not to who is gone."""
        if not self.replied:
            with contextlib.suppress(CallError):
                await self.body()  # what the client still sends
        if self._gone:
            return
        if self._telling:
            await self.stream([error.as_event()])
        elif not self.replied:
            await self._whole(error.status, error.body())

    async def _whole(self, status: int, body: bytes, media_type: bytes = b"application/json") -> None:
        await self._start(status, media_type, (b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, media_type: bytes, *more: tuple[bytes, bytes]) -> None:
        self.replied = True
        self.status = status
        headers = [(b"content-type", media_type), (b"cache-control", b"no-store"), *more]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 429:
            headers.append((b"retry-after", b"1"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
