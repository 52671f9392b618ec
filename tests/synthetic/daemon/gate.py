"""A daemon that is not ready, at a loopback port: its real gate, which nobody opens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rftd.daemon.http.api.probes import Gate
from rftd.ops.bound_socket import bind, url_of
from rftd.ops.errors import RftdError
from rftd.ops.http_server import serving_http


@contextmanager
def gate_at_work(name: str = "", error: RftdError | None = None, *, folder: str = "") -> Iterator[str]:
    """The address of a daemon that waits for the part `name`, or that starts; `folder` is the id of its folder."""
    gate = Gate(hold_s=0.0, folder=folder)
    if error is not None:
        gate.wait_for(name, error)
    bound = bind("127.0.0.1", 0)
    up = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving_http(gate, bound):
            up.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert up.wait(30)
        yield url_of(bound)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
        bound.close()
