"""The HTTP server: uvicorn on a socket bound before everything else starts, inside the process's own loop."""

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
"""Connections accepted in one turn of the loop, so that other tasks get their turn, too."""
_REST_S: Final = 0.25
"""Pause in seconds when the system has no resources left to accept with."""
_FIRST_REST_S: Final = 0.02
"""Pause in seconds before a client is disconnected for lack of resources: connections being closed may free some."""
_TOO_MANY_FILES_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a process or machine that can open no further file."""
_HANDSHAKE_S: Final = 10.0
"""Maximum seconds for a TLS client's handshake, and for its shutdown."""

GRACE_S = 2
"""Seconds for open requests and event streams at shutdown."""
TICK_S = 1.0
"""Interval in seconds at which the header Date is renewed; nothing else waits for it."""


class Listener:
    """The accepting side of a server. With a reserve descriptor, a client can always be accepted and closed.

    When no file can be opened, asyncio's own listener retries up to the backlog and logs each attempt; an unaccepted
    client waits without an answer. Here the client is accepted with the reserve and disconnected, the loop pauses for a
    moment, and the log has a single line about the problem.
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
        """`connect` creates the protocol of a connection. Beyond `handshakes` simultaneous TLS handshakes the oldest
        ends.
        """
        self._listening: Final = listening
        self._connect: Final = connect
        self._logger: Final = logger
        self._backlog: Final = backlog
        self._handshakes: Final = handshakes
        self._tls: Final = tls
        self._loop: Final = asyncio.get_running_loop()
        self._beginning: Final[dict[asyncio.Task[None], None]] = {}
        """Connections in a TLS handshake, the oldest first."""
        self._resting: asyncio.TimerHandle | None = None
        self._has_rested = False
        """True if no client was accepted since a pause."""
        self._reserve = -1
        self._closed = False
        self.hung_up = 0
        """Number of clients disconnected because no resources were available to accept them."""

    def listen(self) -> None:
        """Starts accepting connections on the event loop, with a descriptor in reserve."""
        self._listening.setblocking(False)
        listen(self._listening, self._backlog)
        self._keep_reserve()
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Stops accepting; open connections stay open. Idempotent."""
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
        """Returns once no connection is being established any more, including TLS handshakes."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _accept(self) -> None:
        """Accepts waiting clients, at most `_ACCEPTS` per turn of the loop."""
        for _ in range(_ACCEPTS):
            try:
                client, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _TOO_MANY_FILES_ERRORS:
                    raise
                self._rest(error)
                return
            self._has_rested = False
            client.setblocking(False)
            if self._tls is not None and len(self._beginning) >= self._handshakes:
                next(iter(self._beginning)).cancel()  # the oldest one: an honest client needs milliseconds
            task = self._loop.create_task(self._begin(client))
            self._beginning[task] = None
            task.add_done_callback(self._forget)

    async def _begin(self, client: socket.socket) -> None:
        """Hands an accepted client to a new protocol, after the TLS handshake if any."""
        # Clients breaking off a handshake, or not speaking TLS, are ignored.
        timeout_s = None if self._tls is None else _HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                self._connect,
                client,
                ssl=self._tls,
                ssl_handshake_timeout=timeout_s,
                # A refused client is not waited for.
                ssl_shutdown_timeout=timeout_s,
            )
        except OSError:
            client.close()

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Removes a finished task of a beginning connection."""
        self._beginning.pop(task, None)

    def _rest(self, error: OSError) -> None:
        """Pauses accepting for a moment. If an earlier pause brought no room, disconnects the longest-waiting client,
        using the reserve.
        """
        rest_s = _FIRST_REST_S
        if self._has_rested:
            rest_s = _REST_S
            self._hang_up()
            self._logger.warning(
                "connections.no_room", reason=error.strerror, fix="raise the limit of open files (ulimit -n)"
            )
        self._has_rested = True
        self._loop.remove_reader(self._listening.fileno())
        self._resting = self._loop.call_later(rest_s, self._resume)

    def _hang_up(self) -> None:
        """Disconnects the longest-waiting client, using the reserve."""
        self._free_reserve()
        with suppress(OSError):
            client, _address = self._listening.accept()
            client.close()
            self.hung_up += 1
        self._keep_reserve()

    def _resume(self) -> None:
        """Accepts again after a pause for lack of file descriptors."""
        self._resting = None
        self._keep_reserve()
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _keep_reserve(self) -> None:
        """Opens the reserve descriptor, unless it is open already or cannot be opened."""
        if self._reserve < 0:
            with suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _free_reserve(self) -> None:
        """Closes the reserve descriptor, so that one more file can be opened."""
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1


class _Server(uvicorn.Server):
    """uvicorn's server with other listeners, a slower tick, and signals left to the process."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        """Prepares uvicorn's server; `tls` is the context of HTTPS, None for plain HTTP."""
        super().__init__(config)
        self._tls = tls
        self.up = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Ends the server: `serve` returns after open requests have had `GRACE_S` seconds."""
        self.should_exit = True
        self._leaving.set()
        asyncio.get_running_loop().call_later(GRACE_S, self._cut)

    def _cut(self) -> None:
        """Aborts answers still in progress: an event stream with a reader ends in no other way."""
        # As if the client had disconnected: every stream handler checks for that. uvicorn would cancel the handler, and
        # print the cancellation as an error with a traceback.
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.cut()

    async def main_loop(self) -> None:
        """Ticks once a second. uvicorn's own loop wakes ten times a second to check for the end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._leaving.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens like uvicorn, but with a listener that survives a lack of file descriptors."""
        await self.lifespan.startup()
        protocol: Any = self.config.http_protocol_class
        state = self.lifespan.state
        connect = partial(protocol, config=self.config, server_state=self.server_state, app_state=state, _loop=None)
        listeners = [
            Listener(bound, connect, logger=logger(), backlog=self.config.backlog, tls=self._tls)
            for bound in sockets or ()
        ]
        for listener in listeners:
            listener.listen()
        self.servers = listeners  # type: ignore[assignment]  # uvicorn only closes them
        self.started = True
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing: signals belong to the process, not to uvicorn."""
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
    """Serves `app` while the block runs; at the end, requests in progress get `GRACE_S` seconds.

    A connection idle between two requests is closed after `keep_alive_s`. `refusal` formats answers to malformed input.
    Connections use at most three quarters of the process's limit of open files.
    """
    bounds = replace(bounds, connections=min(bounds.connections, open_files() * 3 // 4))
    # uvicorn creates each connection by a call, as of a class.
    connection: Any = partial(HttpConnection, bounds=bounds, refusal=refusal, leaving=Leaving())
    config = uvicorn.Config(
        app,
        http=connection,
        log_config=None,  # its lines go to the common log, and are counted there if they repeat
        log_level="warning",
        access_log=False,
        lifespan="off",
        # A second more for handlers without a begun answer.
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
            # Before the group ends: a failed block would cut off the requests in progress.
            await asyncio.wait([serving], timeout=GRACE_S + 2)
