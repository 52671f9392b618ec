"""A client that vanishes in the middle of its live page costs the daemon no connection to the tables, and no memory."""

from __future__ import annotations

import asyncio
import gc

import pytest
from sqlalchemy import event
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.until import until

from rftd.daemon.http.api.live_page import LivePage
from rftd.ops.bound_socket import bind
from rftd.ops.http_connection import HttpConnection
from rftd.ops.http_server import serving_http
from rftd.storage.database.connection_pool import ConnectionPool

pytestmark = pytest.mark.anyio
CLIENTS = 10
STREAM = b"GET /v1/experiments/small/stream HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def ended(parts: DaemonParts) -> None:
    """Returns once nobody reads the tables."""
    pool = parts.engine.pool
    assert isinstance(pool, ConnectionPool)
    await until(lambda: pool.checkedout() == 0)


async def test_a_vanished_client_costs_no_connection(parts: DaemonParts, caplog: pytest.LogCaptureFixture) -> None:
    """A statement that was cancelled ended its connection; the thread's last task was lost, and logged as an error."""
    opened: list[object] = []
    event.listen(parts.engine.sync_engine, "connect", lambda connection, _: opened.append(connection))
    bound = bind("127.0.0.1", 0)
    async with asyncio.timeout(60), serving_http(parts.app, bound):
        for _ in range(CLIENTS):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(STREAM)
            await reader.readuntil(b"\r\n\r\n")  # the page itself is being read now
            writer.transport.abort()
            await ended(parts)
    assert len(opened) <= 2
    assert "destroyed" not in caplog.text


async def test_a_vanished_client_leaves_no_cycle(parts: DaemonParts) -> None:
    """Its connection and its page were kept by a cycle of references, for a collector that seldom looks."""

    def alive() -> int:
        return sum(isinstance(thing, HttpConnection | LivePage) for thing in gc.get_objects())

    bound = bind("127.0.0.1", 0)
    gc.collect()
    gc.disable()
    before = alive()  # of other tests
    try:
        async with asyncio.timeout(60), serving_http(parts.app, bound):
            for _ in range(CLIENTS):
                reader, writer = await asyncio.open_connection(*bound.getsockname())
                writer.write(STREAM)
                await reader.readuntil(b"\r\n\r\n")
                writer.transport.abort()
                await ended(parts)
            await until(lambda: alive() <= before)
    finally:
        gc.enable()
