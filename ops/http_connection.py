"""`HttpConnection`: a connection of uvicorn with bounds on a client's time without progress."""

from __future__ import annotations

import asyncio
import heapq
import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rftd.ops import limits
from rftd.ops.cycles import beneath, release

Refusal: TypeAlias = Callable[[int, str], tuple[bytes, bytes]]
"""Returns media type and body of an error response, from its status and message, for input that never became a request.
"""


def plain_refusal(_status: int, what: str) -> tuple[bytes, bytes]:
    """Returns the message as a line of plain text, the default form of a refusal."""
    return b"text/plain; charset=utf-8", f"{what}\n".encode()


class Waits(IntEnum):
    """What a server waits for from a client, in the order in which connections are dropped for room."""

    FIRST_BYTE = 0
    """The first byte of the first request."""
    REQUEST = 1
    """The remaining bytes of a request that has begun."""
    NEXT_REQUEST = 2
    """Another request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionBounds:
    """The bounds of a server's connections: seconds for head, body and unread answers, and a number."""

    head_s: float = limits.HTTP_HEAD_S
    """Maximum seconds from the first byte of a request, or from the connection, to the end of the request's head."""
    body_s: float = limits.HTTP_BODY_S
    """Seconds after the end of the head during which a body may arrive at any rate."""
    body_bytes_per_s: float = limits.HTTP_BODY_BYTES_PER_S
    """Minimum rate of a body after `body_s`."""
    whole_body_s: float = limits.HTTP_WHOLE_BODY_S
    """Maximum seconds for a whole body, at any rate."""
    unread_s: float = limits.HTTP_UNREAD_S
    """Maximum seconds that an answer may wait for its client to read."""
    connections: int = limits.HTTP_CONNECTIONS
    """Maximum simultaneous connections; beyond it, connections without a whole request are dropped."""


DEFAULT_BOUNDS: Final = ConnectionBounds()
"""The bounds used unless others are set."""


class HttpConnection(H11Protocol):
    """A client's connection. Malformed or slow input, and connections over the limit, are refused in the server's own
    format.

    uvicorn itself bounds only the wait between two requests.
    """

    def __init__(self, *, bounds: ConnectionBounds, refusal: Refusal, leaving: Leaving, **options: Any) -> None:
        """`leaving` is shared by the connections of a server."""
        super().__init__(**options)
        self._bounds: Final = bounds
        self._refusal: Final = refusal
        self._leaving: Final = leaving
        self._leaves = False
        self._head_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        self._body_due: asyncio.TimerHandle | None = None
        self._body_began_s = 0.0
        self._body_bytes = 0
        self._heard = False
        self._socket: asyncio.BaseTransport | None = None
        """The transport of the socket itself, beneath TLS."""
        self._waits_since_s = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Counts the connection, and starts waiting for the first request; refuses one beyond the bound."""
        super().connection_made(transport)
        self._socket = beneath(transport)
        if len(self.connections) > self._bounds.connections and not self._make_room():
            self._refuse(503, f"{self._bounds.connections} connections are open: come again later")
        else:
            self._await_head()

    def data_received(self, received: bytes) -> None:
        """Handles bytes sent by the client, and starts or stops the timers of head and body."""
        if self._leaves or self.transport.is_closing():  # already refused: further bytes are ignored
            return
        self._heard = True
        self._body_bytes += len(received)
        super().data_received(received)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_head()
            if self.cycle.more_body and self._body_due is None:
                self._await_body(len(received))
        elif self._head_due is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels all timers of the connection and breaks the transport's reference cycle."""
        self._forget_head()
        self._forget_read()
        self._forget_body()
        super().connection_lost(exc)
        release(self._socket)

    def on_response_complete(self) -> None:
        """Starts waiting for the next request on the connection, after a complete answer."""
        self._waits_since_s = self.loop.time()
        super().on_response_complete()

    @property
    def claim(self) -> tuple[Waits, float] | None:
        """What the server waits for from this client, and since when (monotonic seconds); None while it is
        answering.
        """
        if self._leaves or self.transport.is_closing():
            return None
        if self.cycle is not None and not self.cycle.response_complete:
            return (Waits.REQUEST, self._body_began_s) if self.cycle.more_body else None
        if not self._heard:
            return Waits.FIRST_BYTE, self._waits_since_s
        unfinished = self._head_due is not None or self.conn.their_state is h11.SEND_BODY
        return Waits.REQUEST if unfinished else Waits.NEXT_REQUEST, self._waits_since_s

    def give_way(self) -> None:
        """Closes a waiting connection with status 503, to make room for others."""
        self._leave(503, f"{self._bounds.connections} connections are open, and this one waited longest")
        # Now, not once closed: until then each newcomer would drop as many connections again.
        self.connections.discard(self)

    def cut(self) -> None:
        """Aborts the answer in progress, if any."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Starts waiting, for at most `unread_s` seconds, for the client to read."""
        super().pause_writing()
        if self._read_due is None:
            # The remaining answer is dropped: a client not reading would miss an error as well.
            self._read_due = self.loop.call_later(self._bounds.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Continues with the answer, once the client reads again."""
        self._forget_read()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuses malformed HTTP; `msg` is uvicorn's own sentence."""
        self._refuse(400, "this is not a valid HTTP/1.1 request")

    def _make_room(self) -> bool:
        """Ends the longest-waiting connections, silent ones first, up to a sixteenth of the bound; False if there is no
        room for the newcomer: all others are being answered, or the bound is exceeded by an eighth.
        """
        peers = [peer for peer in self.connections if isinstance(peer, HttpConnection) and peer is not self]
        claims = [(claim, id(peer), peer) for peer in peers if (claim := peer.claim) is not None]
        unread = _with_unread([connection for claim, _, connection in claims if claim[0] is Waits.FIRST_BYTE])
        waiting = [claim for claim in claims if claim[2] not in unread]
        # Several at once: examining all connections for each newcomer would be open to attack.
        for _, _, connection in heapq.nsmallest(max(1, self._bounds.connections // 16), waiting):
            connection.give_way()
        # Connections with unread bytes are handled in the current or the next turn of the loop.
        return bool(waiting or unread) and len(self.connections) <= self._bounds.connections * 9 // 8

    def _await_body(self, size_bytes: int) -> None:
        """Starts waiting for the remaining body; `size_bytes` is the size of the piece that completed the head, counted
        as body.
        """
        self._body_began_s = self.loop.time()
        self._body_bytes = size_bytes
        self._body_due = self.loop.call_later(self._bounds.body_s, self._weigh_body)

    def _weigh_body(self) -> None:
        """Refuses a slow body, or schedules the next check."""
        self._body_due = None
        if self.transport.is_closing() or self.cycle is None or self.cycle.response_complete:
            return
        if not self.cycle.more_body:
            return
        bounds = self._bounds
        allowed_s = min(bounds.body_s + self._body_bytes / bounds.body_bytes_per_s, bounds.whole_body_s)
        left_s = self._body_began_s + allowed_s - self.loop.time()
        if left_s <= 0 and self.flow.read_paused:  # the application does not read: not the client's fault
            left_s = bounds.body_s
        if left_s > 0:
            self._body_due = self.loop.call_later(left_s, self._weigh_body)
        else:
            self._leave(408, f"of the body {self._body_bytes} bytes came in {allowed_s:g} s")

    def _await_head(self) -> None:
        """Starts the timer for the head of a request."""
        self._waits_since_s = self.loop.time()
        self._head_due = self.loop.call_later(self._bounds.head_s, self._slow)

    def _slow(self) -> None:
        """Refuses a connection whose head did not arrive in time."""
        self._head_due = None
        if not self.transport.is_closing():
            self._leave(408, f"the head of the request did not come within {self._bounds.head_s:g} s")

    def _leave(self, status: int, what: str) -> None:
        """Schedules a refusal in a later turn of the loop, and ignores further bytes of the client until then."""
        self._forget_head()
        self._forget_body()
        if not self._leaves:
            self._leaves = True
            self._leaving.add(partial(self._refuse, status, what))

    def _refuse(self, status: int, what: str) -> None:
        """Answers with an error and closes, or only aborts if an answer has begun."""
        self._forget_head()
        self._forget_body()
        if self.transport.is_closing():
            return
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        # As bytes, bypassing h11, and at once: under a flood, hundreds of clients are refused each second.
        self.transport.write(_refusal_answer(self._refusal, status, what))
        self.transport.close()

    def _forget_head(self) -> None:
        """Cancels the timer for the head of a request."""
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _forget_body(self) -> None:
        """Cancels the timer for the body of a request."""
        if self._body_due is not None:
            self._body_due.cancel()
            self._body_due = None

    def _forget_read(self) -> None:
        """Cancels the timer for a client that does not read."""
        if self._read_due is not None:
            self._read_due.cancel()
            self._read_due = None


@lru_cache(maxsize=32)
def _refusal_answer(refusal: Refusal, status: int, what: str) -> bytes:
    """Returns the complete answer for refusing a client and ending the connection."""
    media_type, body = refusal(status, what)
    reason = HTTPStatus(status).phrase.encode()
    head = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, reason, media_type, len(body)) + body


def _with_unread(connections: Sequence[HttpConnection]) -> set[HttpConnection]:
    """Returns the connections with received bytes not yet read: in a burst, the loop reads late."""
    poll = select.poll()
    by_number = {}
    for connection in connections:
        end = connection.transport.get_extra_info("socket")
        if end is not None and (number := end.fileno()) >= 0:
            by_number[number] = connection
            poll.register(number, select.POLLIN)
    return {by_number[number] for number, _ in poll.poll(0)}


_ENDS: Final = 8
"""Number of connections closed in one turn of the event loop."""


class Leaving:
    """A queue of connections to be closed, a few per turn of the event loop.

    Hundreds of clients connected at a moment reach a time-out together: ending all of them in a single turn would block
    everybody else.
    """

    def __init__(self) -> None:
        """Begins without connections to close."""
        self._ends: Final[deque[Callable[[], None]]] = deque()

    def add(self, end: Callable[[], None]) -> None:
        """Calls `end` in a later turn of the loop, in the order of the calls of `add`."""
        if not self._ends:
            asyncio.get_running_loop().call_soon(self._turn)
        self._ends.append(end)

    def _turn(self) -> None:
        """Ends the next `_ENDS` connections, and schedules another turn for the others."""
        for _ in range(min(_ENDS, len(self._ends))):
            self._ends.popleft()()
        if self._ends:
            asyncio.get_running_loop().call_soon(self._turn)
