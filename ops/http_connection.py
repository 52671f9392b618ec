"""`HttpConnection`: a connection of uvicorn's, with bounds on how long a client may keep it without getting on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rftd.ops import limits

Refusal: TypeAlias = Callable[[int, str], tuple[bytes, bytes]]
"""The media type and body of an answer, by its status and what is wrong, to what never became a request."""


def plain_refusal(_status: int, what: str) -> tuple[bytes, bytes]:
    """A line of text."""
    return b"text/plain; charset=utf-8", f"{what}\n".encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionBounds:
    """The bounds of one server's connections."""

    head_s: float = limits.HTTP_HEAD_S
    """The longest time from the first byte of a request, or from the connection, to the end of its head."""
    unread_s: float = limits.HTTP_UNREAD_S
    """The longest time that an answer may wait for its client to read on."""
    connections: int = limits.HTTP_CONNECTIONS
    """The most connections at once."""


DEFAULT_BOUNDS: Final = ConnectionBounds()


class HttpConnection(H11Protocol):
    """One client's connection. What is no HTTP, comes too slowly or once too often is refused in the server's own form.

    uvicorn bounds the wait between two requests only. A body has the bounds of whoever reads it.
    """

    def __init__(self, *, bounds: ConnectionBounds, refusal: Refusal, **given: Any) -> None:
        super().__init__(**given)
        self._bounds: Final = bounds
        self._refusal: Final = refusal
        self._head_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Counts the connection, and waits for its first request."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.connections:
            self._refuse(503, f"{self._bounds.connections} connections are open: come again later")
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        """Takes what the client sent."""
        if self.transport.is_closing():  # refused: what still comes is of no interest
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_head()
        elif self._head_due is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what waited for the client."""
        self._forget_head()
        self._forget_read()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Breaks off an answer that has begun and has not ended; leaves a connection without one as it is."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Waits for the client to read."""
        super().pause_writing()
        if self._read_due is None:
            # Whatever is left of the answer is dropped: a client that reads nothing would not read an error either.
            self._read_due = self.loop.call_later(self._bounds.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Goes on with the answer."""
        self._forget_read()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP; `msg` is uvicorn's own sentence."""
        self._refuse(400, "what was sent is no valid HTTP/1.1 request")

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(self._bounds.head_s, self._slow)

    def _slow(self) -> None:
        self._head_due = None
        if not self.transport.is_closing():
            self._refuse(408, f"the head of the request did not come within {self._bounds.head_s:g} s")

    def _refuse(self, status: int, what: str) -> None:
        """Answers with an error and closes, or only closes where an answer has begun."""
        self._forget_head()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        media_type, body = self._refusal(status, what)
        headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        reason = HTTPStatus(status).phrase.encode()
        for event in (
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _forget_head(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _forget_read(self) -> None:
        if self._read_due is not None:
            self._read_due.cancel()
            self._read_due = None
