"""`run_until_told`: a server as the child of a supervisor such as honcho or systemd."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.daemon.stack.ports import clients_of
from rftd.daemon.stack.postgres import PostgresServer
from rftd.ops.errors import RftdError, UnreachableError

_INTERVAL_S: Final = 0.2
# Supervisors tell all their processes to end at once, and honcho kills after 5 s what is left: a server that waits a
# little lets the daemon and the workers write their last records.
_CLIENTS_LEAVE_S: Final = 3.0


async def run_until_told(server: KafkaBroker | PostgresServer, on_ready: Callable[[], None]) -> None:
    """Starts the server, or takes over one that was left behind; stops it at SIGTERM or SIGINT, also while it starts.

    It gives its clients a moment to leave first.
    Raises what `start` raises, and UnreachableError if the server ends by itself.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    # Not awaited here: a thread cannot be cancelled, and a signal that comes while the server starts must be heard
    # all the same.
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    while not starting.done() and not told.is_set():
        await asyncio.wait([starting], timeout=_INTERVAL_S)
    if not told.is_set():
        await starting
        on_ready()
        while not told.is_set() and server.pid is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), _INTERVAL_S)
        if not told.is_set():
            raise UnreachableError("the server ended by itself", where=str(server.log_path), fix="see its end")
        with suppress(TimeoutError):
            await asyncio.wait_for(_alone(server.port), _CLIENTS_LEAVE_S)
    while not starting.done():  # before it has a process there is nothing to stop: ask again
        await asyncio.to_thread(server.stop)
        await asyncio.wait([starting], timeout=_INTERVAL_S)
    with suppress(RftdError):
        await starting
    await asyncio.to_thread(server.stop)


async def _alone(port: int) -> None:
    while clients_of(port):  # noqa: ASYNC110 - the kernel has no event for it
        await asyncio.sleep(_INTERVAL_S)
