"""The HTTP server: uvicorn on a socket that is bound before anything else starts, inside the process's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from rftd.ops.http_connection import DEFAULT_BOUNDS, ConnectionBounds, HttpConnection, Refusal, plain_refusal
from rftd.ops.http_leaving import Leaving
from rftd.ops.http_listener import Listener
from rftd.ops.logs import logger
from rftd.ops.open_files import open_files
from rftd.ops.tls import ServerTls

GRACE_S = 2
"""The time that open requests and event streams get at the end."""
TICK_S = 1.0
"""The interval at which the header Date is renewed; nothing else waits for it."""


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
