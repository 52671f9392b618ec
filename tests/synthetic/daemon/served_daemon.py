"""A parts whose API is on a loopback port, in a thread: for command lines, which block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from synthetic.daemon.command_line import Served
from synthetic.daemon.daemon_parts import open_daemon
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import PATIENCE_S, poll

from rftd.ops.bound_socket import bind, url_of
from rftd.ops.http_server import serving_http


@contextmanager
def served_daemon(folder: Path, *, token: str | None = None, run: SyntheticRun | None = None) -> Iterator[Served]:
    """The API over one run, else a complete one named `small`, for whoever has the token, if there is one."""
    up = threading.Event()
    told: dict[str, object] = {}

    async def serve() -> None:
        stop = told["stop"] = asyncio.Event()
        told["loop"] = asyncio.get_running_loop()
        bound = bind("127.0.0.1", 0)
        async with open_daemon(folder, token=token, run=run) as parts, serving_http(parts.app, bound):
            told["served"] = Served(url_of(bound), parts, asyncio.get_running_loop())
            up.set()
            await stop.wait()
        bound.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    poll(lambda: up.is_set() or not thread.is_alive())
    assert up.is_set(), "it did not start: see the thread's error"
    served = told["served"]
    loop = told["loop"]
    stop = told["stop"]
    assert isinstance(served, Served)
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert isinstance(stop, asyncio.Event)
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
