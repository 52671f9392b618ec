"""`Connection`, the client's side of a connection: requests are pipelined, replies come in any order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Self, cast

from rftd.ops.decoding import UNREADABLE
from rftd.ops.errors import CodecError, ConflictError, RftdError, UnreachableError
from rftd.ops.own_folder import check_sockets_folder
from rftd.streams.sqlite.socket import messages as wire
from rftd.streams.sqlite.socket.append_gate import user_of
from rftd.streams.sqlite.socket.frames import FrameReader


class Connection(asyncio.BufferedProtocol):
    """One client connection, matching replies with requests; after a loss it is not reconnected, but replaced.

    It reads from the transport into its own buffer: asyncio's streams would copy each frame into and out of theirs.
    """

    def __init__(self) -> None:
        """Begins without a transport."""
        self._frames = FrameReader()
        self._waiting: dict[int, asyncio.Future[wire.Reply]] = {}
        self._ids = count(1)
        self._transport: asyncio.Transport | None = None
        self._uncongested = asyncio.Event()
        self._uncongested.set()
        self._resume: Callable[[], None] | None = None
        self._reason: RftdError | None = None

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Opens a connection to the server at `path`.

        Raises UnreachableError if nobody listens there, ConflictError if the listener is, or may be, another user.
        """
        check_sockets_folder(path.parent)
        try:
            transport, connection = await asyncio.get_running_loop().create_unix_connection(cls, os.fspath(path))
        except OSError as error:
            raise UnreachableError(
                f"no daemon answers: {error.strerror or error}", where=str(path), fix="start it with `rftd serve`"
            ) from error
        # Asked of the kernel, before a byte is sent: the folder may have changed since its check.
        if (user := user_of(transport)) not in (None, os.geteuid()):
            transport.abort()
            raise ConflictError(
                f"user {user} serves a log at this socket, and this process runs as {os.geteuid()}",
                where=str(path),
                fix="run workers as the daemon's user",
            )
        return connection

    @property
    def lost(self) -> bool:
        """True once either side has closed the connection."""
        return self._transport is None or self._transport.is_closing()

    def submit(self, make: wire.Make) -> asyncio.Future[wire.Reply]:
        """Sends the request built by `make` around a fresh id; the future gets its reply.

        Raises on a lost connection the reason sent by the server, or else UnreachableError; so does the future, if the
        connection is lost before the reply.
        """
        if self._transport is None or self._transport.is_closing():
            raise self._lost_error()
        id = next(self._ids)
        self._transport.write(wire.framed(make(id)))
        reply = self._waiting[id] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(lambda done: self._settle(id, done))
        return reply

    async def request(self, make: wire.Make, timeout_s: float) -> wire.Reply:
        """Sends the request built by `make` around a fresh id and returns the reply.

        Raises the error carried by the reply; UnreachableError if the connection is lost first, or if no reply comes
        within `timeout_s`, whereupon the connection is closed. Cancelling tells the server to stop.
        """
        await self._uncongested.wait()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.submit(make)
        except TimeoutError as error:
            raise self.unanswered(timeout_s) from error
        if isinstance(answer, wire.Failed):
            raise wire.error_of(answer)
        return answer

    def unanswered(self, timeout_s: float) -> UnreachableError:
        """Closes the connection because no reply came in time, and returns the error to raise."""
        # A suspended process keeps its socket open: only a new connection finds its successor.
        self.hang_up()
        return UnreachableError(f"the daemon did not answer within {timeout_s:g} s", fix="check if it is suspended")

    def when_writable(self, resume: Callable[[], None]) -> bool:
        """True if the socket accepts more now; else `resume` is called once it does, or once the connection is lost."""
        if self._uncongested.is_set():
            return True
        self._resume = resume
        return False

    def hang_up(self) -> None:
        """Closes the connection at once; waiting requests fail with UnreachableError, or the known reason of the loss.
        Idempotent.
        """
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, no check: transports of other event loops, such as uvloop's, are not of asyncio's classes.
        """Called by asyncio with the transport of the open connection."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio after the connection was closed: fails all waiting requests."""
        self._transport = None
        for reply in list(self._waiting.values()):  # a copy: `_settle` removes each from the dictionary
            if not reply.done():
                reply.set_exception(self._lost_error())
        self.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio for memory to receive into."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio after `nbytes` were received: completes the requests of the replies among them."""
        try:
            replies = [wire.decode_reply(body) for body in self._frames.filled(nbytes)]
        except (CodecError, *UNREADABLE) as error:
            self._reason = CodecError(f"unreadable reply: {error}", fix="run daemon and workers of the same release")
            self.hang_up()
            return
        for reply in replies:
            if isinstance(reply, wire.Failed) and reply.id == 0:  # the server hangs up, with the reason
                self._reason = wire.error_of(reply)
            waiting = self._waiting.get(reply.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)

    def pause_writing(self) -> None:
        """Called by asyncio when the socket accepts no more: see `when_writable`."""
        self._uncongested.clear()

    def resume_writing(self) -> None:
        """Called by asyncio when the socket accepts more again: calls the function last passed to `when_writable`."""
        self._uncongested.set()
        resume = self._resume
        self._resume = None
        if resume is not None:
            resume()

    def _settle(self, id: int, reply: asyncio.Future[wire.Reply]) -> None:
        """Forgets an answered request; tells the server of an abandoned one."""
        self._waiting.pop(id, None)
        # An abandoned long poll would occupy one of the server's requests for half a minute.
        if reply.cancelled() and self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.framed(wire.Cancel(id)))

    def _lost_error(self) -> RftdError:
        """Returns the reason of the loss, or the general error."""
        return self._reason or UnreachableError("the connection to the daemon was lost", fix="retry the same drafts")
