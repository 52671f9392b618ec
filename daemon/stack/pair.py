"""`Stack`: Kafka and Postgres of one folder, as `rftd stack` sees them; or one as the child of a supervisor."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.daemon.stack.ports import clients_of
from rftd.daemon.stack.postgres import PostgresServer
from rftd.ops.errors import RftdError, UnreachableError


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One server, as it stands."""

    name: str
    state: str
    """running, starting or stopped."""
    url: str
    """The URL for `rftd serve`, without a password. Empty before the first start."""
    pid: int | None
    folder: str
    pass_file: str | None = None
    """The file with the password, for PGPASSFILE."""


class Stack:
    """Two servers below one folder. Every call blocks."""

    def __init__(self, folder: Path) -> None:
        """Touches nothing."""
        self._kafka = folder / "kafka"
        self._postgres = folder / "postgres"

    def up(self, *, kafka_port: int = 0, postgres_port: int = 0) -> None:
        """Starts what does not run, both at once, and returns when both serve; raises the first failure."""
        servers = (
            KafkaBroker(self._kafka, port=kafka_port),
            PostgresServer(self._postgres, port=postgres_port),
        )
        _each([server.start for server in servers])

    def down(self, *, delete: bool = False) -> None:
        """Stops what runs; with `delete` the data goes too."""
        servers: list[KafkaBroker | PostgresServer] = []
        if _exists(self._kafka):
            servers.append(KafkaBroker(self._kafka))
        if _exists(self._postgres):
            servers.append(PostgresServer(self._postgres))
        _each([server.remove if delete else server.stop for server in servers])

    def parts(self) -> tuple[Part, Part]:
        """Kafka and Postgres, as they stand."""
        return self._kafka_part(), self._postgres_part()

    def _kafka_part(self) -> Part:
        if not _exists(self._kafka):
            return Part(name="kafka", state="stopped", url="", pid=None, folder=str(self._kafka))
        broker = KafkaBroker(self._kafka)
        pid = broker.pid
        return Part(
            name="kafka", state=_state(pid, broker.ready), url=broker.bootstrap, pid=pid, folder=str(self._kafka)
        )

    def _postgres_part(self) -> Part:
        if not _exists(self._postgres):
            return Part(name="postgres", state="stopped", url="", pid=None, folder=str(self._postgres))
        server = PostgresServer(self._postgres)
        pid = server.pid
        return Part(
            name="postgres",
            state=_state(pid, server.ready),
            url=server.url_without_password,
            pid=pid,
            folder=str(self._postgres),
            pass_file=str(server.pass_file) if server.pass_file.exists() else None,
        )


def serve_line(kafka: Part, postgres: Part, data: str | None = None) -> str:
    """The `rftd serve` that uses them, to be pasted into a shell; `data` is the daemon's folder if it was named."""
    password = f"PGPASSFILE={shlex.quote(postgres.pass_file)} " if postgres.pass_file else ""
    # The folder remembers the ends of the log that it was used with: another one would take this log for a damaged one.
    folder = f" --data {shlex.quote(data)}" if data else ""
    return f"{password}rftd serve{folder} --kafka {kafka.url} --postgres {postgres.url}"


def _exists(folder: Path) -> bool:
    return (folder / "ports.json").exists()


def _state(pid: int | None, ready: bool) -> str:
    if pid is None:
        return "stopped"
    return "running" if ready else "starting"


def _each(work: Sequence[Callable[[], Any]]) -> None:
    """Does all of it at once; when all has ended, raises the first failure."""
    # Both at once: each takes seconds, most of them waiting.
    with ThreadPoolExecutor(len(work) or 1) as pool:
        done = [pool.submit(each) for each in work]
    for each in done:
        each.result()


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
