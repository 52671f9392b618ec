"""The HTTP server: uvicorn on a socket that is bound before anything else starts, inside the process's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from rftd.ops.bound_socket import listen
from rftd.ops.http_connection import DEFAULT_BOUNDS, ConnectionBounds, HttpConnection, Leaving, Refusal, plain_refusal
from rftd.ops.logs import Logger, logger
from rftd.ops.open_files import open_files
from rftd.ops.tls import ServerTls

_ACCEPTS: Final = 8
"""Connections taken in one turn of the loop, so that others have their turn, too."""
_REST_S: Final = 0.25
"""The pause where the system has nothing left to accept with."""
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_HANDSHAKE_S: Final = 10.0
"""The longest time that a client of TLS gets to come, and to go."""

GRACE_S = 2
"""The time that open requests and event streams get at the end."""
TICK_S = 1.0
"""The interval at which the header Date is renewed; nothing else waits for it."""


class Listener:
    """The accepting side of one server. It keeps a descriptor in reserve, so that a client can always be let go.

    asyncio's own tries again as often as its backlog is long where no file can be opened, and logs each try; a client
    that it cannot accept waits without an answer. Here the client is taken with the reserve and hung up on, the loop
    rests for a moment, and the trouble is one line of the log.
    """

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], asyncio.Protocol],
        *,
        logger: Logger,
        backlog: int = 2048,
        handshakes: int = 256,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`connect` makes the protocol of a connection. Of more TLS `handshakes` at once the oldest ends."""
        self._listening: Final = listening
        self._connect: Final = connect
        self._logger: Final = logger
        self._backlog: Final = backlog
        self._handshakes: Final = handshakes
        self._tls: Final = tls
        self._loop: Final = asyncio.get_running_loop()
        self._beginning: Final[dict[asyncio.Task[None], None]] = {}
        """The connections that are being made, the oldest first."""
        self._resting: asyncio.TimerHandle | None = None
        self._reserve = -1
        self._closed = False
        self.hung_up = 0
        """Clients that were let go because there was nothing left to accept them with."""

    def listen(self) -> None:
        """Begins to accept."""
        self._listening.setblocking(False)
        listen(self._listening, self._backlog)
        self._keep_reserve()
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Accepts nothing from now on; connections that are open stay so. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._resting is not None:
            self._resting.cancel()
        elif self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for beginning in list(self._beginning):
            beginning.cancel()
        self._free_reserve()

    async def wait_closed(self) -> None:
        """Returns once no connection is being made any more."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                client, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._rest(error)
                return
            client.setblocking(False)
            if self._tls is not None and len(self._beginning) >= self._handshakes:
                next(iter(self._beginning)).cancel()  # the oldest one: an honest client needs milliseconds
            task = self._loop.create_task(self._begin(client))
            self._beginning[task] = None
            task.add_done_callback(self._forget)

    async def _begin(self, client: socket.socket) -> None:
        # A client that breaks off a handshake, or knows no TLS, is its own affair.
        timeout_s = None if self._tls is None else _HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                self._connect,
                client,
                ssl=self._tls,
                ssl_handshake_timeout=timeout_s,
                # A client that is shown out is not waited for.
                ssl_shutdown_timeout=timeout_s,
            )
        except OSError:
            client.close()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._beginning.pop(task, None)

    def _rest(self, error: OSError) -> None:
        """Hangs up on the client that waits longest, by the reserve, and accepts nothing for a moment."""
        self._free_reserve()
        with suppress(OSError):
            client, _address = self._listening.accept()
            client.close()
            self.hung_up += 1
        self._keep_reserve()
        self._logger.warning(
            "connections.no_room", reason=error.strerror, fix="raise the limit of open files (ulimit -n)"
        )
        self._loop.remove_reader(self._listening.fileno())
        self._resting = self._loop.call_later(_REST_S, self._resume)

    def _resume(self) -> None:
        self._resting = None
        self._keep_reserve()
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _keep_reserve(self) -> None:
        if self._reserve < 0:
            with suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _free_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls
        self.up = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Ends the server: `serve` returns once open requests have had their time."""
        self.should_exit = True
        self._leaving.set()
        asyncio.get_running_loop().call_later(GRACE_S, self._cut)

    def _cut(self) -> None:
        """Ends what is still being answered: an event stream that somebody watches ends by nothing else."""
        # As if the client had gone, which every handler of a stream looks out for. uvicorn would cancel it, and print
        # the cancellation as an error with its traceback.
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.cut()

    async def main_loop(self) -> None:
        """Ticks once a second. uvicorn's own wakes ten times for that, to look whether it should leave."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._leaving.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, as uvicorn's own does, but by a listener that does not give way where no file can be opened."""
        await self.lifespan.startup()
        made: Any = self.config.http_protocol_class
        state = self.lifespan.state
        connect = partial(made, config=self.config, server_state=self.server_state, app_state=state, _loop=None)
        listeners = [
            Listener(bound, connect, logger=logger(), backlog=self.config.backlog, tls=self._tls)
            for bound in sockets or ()
        ]
        for listener in listeners:
            listener.listen()
        self.servers = listeners  # type: ignore[assignment]  # uvicorn does no more with them than to close them
        self.started = True
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, not to uvicorn."""
        yield


@asynccontextmanager
async def serving_http(
    app: ASGIApp,
    bound: socket.socket,
    *,
    keep_alive_s: int = 5,
    refusal: Refusal = plain_refusal,
    bounds: ConnectionBounds = DEFAULT_BOUNDS,
    tls: ServerTls | None = None,
) -> AsyncIterator[None]:
    """Serves `app` while the block runs; on its end requests under way are given `GRACE_S`.

    A connection without a request is closed after `keep_alive_s`. `refusal` is the form of answers to what never
    became a request. Connections take at most three quarters of the files that this process may open.
    """
    bounds = replace(bounds, connections=min(bounds.connections, open_files() * 3 // 4))
    # uvicorn makes each connection by calling it, as it would call a class.
    connection: Any = partial(HttpConnection, bounds=bounds, refusal=refusal, leaving=Leaving())
    config = uvicorn.Config(
        app,
        http=connection,
        log_config=None,  # its lines go where all others go, and are counted there if they repeat
        log_level="warning",
        access_log=False,
        lifespan="off",
        # One second more for handlers that have not begun to answer.
        timeout_graceful_shutdown=GRACE_S + 1,
        timeout_keep_alive=keep_alive_s,
    )
    server = _Server(config, None if tls is None else tls.context)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[bound]))
        try:
            await server.up.wait()
            yield
        finally:
            server.leave()
            # Before the group ends: if the block failed, that would cut off the requests under way.
            await asyncio.wait([serving], timeout=GRACE_S + 2)
