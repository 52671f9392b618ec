"""`Stack`: Kafka and Postgres of one folder, for `rftd stack`; or one server as the child of a supervisor."""

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
    """The current state of one server."""

    name: str
    """Name of the server: `kafka` or `postgres`."""
    state: str
    """running, starting or stopped."""
    url: str
    """URL for `rftd serve`, without a password. Empty before the first start."""
    pid: int | None
    """Process id of the server; None if it is not running."""
    folder: str
    """Folder of the server."""
    pass_file: str | None = None
    """The file with the password, for PGPASSFILE."""


class Stack:
    """Kafka and Postgres below one folder, for `rftd stack`. Every call blocks."""

    def __init__(self, folder: Path) -> None:
        """Accesses no files."""
        self._kafka = folder / "kafka"
        """Folder of the Kafka broker."""
        self._postgres = folder / "postgres"
        """Folder of the Postgres server."""

    def up(self, *, kafka_port: int = 0, postgres_port: int = 0) -> None:
        """Starts the servers not running, concurrently, and returns when both serve; raises the first failure."""
        servers = (
            KafkaBroker(self._kafka, port=kafka_port),
            PostgresServer(self._postgres, port=postgres_port),
        )
        _concurrently([server.start for server in servers])

    def down(self, *, delete: bool = False) -> None:
        """Stops the running servers; with `delete` the data is deleted as well."""
        servers: list[KafkaBroker | PostgresServer] = []
        if _exists(self._kafka):
            servers.append(KafkaBroker(self._kafka))
        if _exists(self._postgres):
            servers.append(PostgresServer(self._postgres))
        _concurrently([server.remove if delete else server.stop for server in servers])

    def parts(self) -> tuple[Part, Part]:
        """Returns the current states of Kafka and Postgres."""
        return self._kafka_part(), self._postgres_part()

    def _kafka_part(self) -> Part:
        """Returns the state of the Kafka broker."""
        if not _exists(self._kafka):
            return Part(name="kafka", state="stopped", url="", pid=None, folder=str(self._kafka))
        broker = KafkaBroker(self._kafka)
        pid = broker.pid
        return Part(
            name="kafka", state=_state(pid, broker.ready), url=broker.bootstrap, pid=pid, folder=str(self._kafka)
        )

    def _postgres_part(self) -> Part:
        """Returns the state of the Postgres server."""
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


def serve_line(kafka: Part, postgres: Part, data_folder: str | None = None) -> str:
    """Returns the `rftd serve` command for the servers, for a shell; `data_folder` is the daemon's folder if set."""
    password = f"PGPASSFILE={shlex.quote(postgres.pass_file)} " if postgres.pass_file else ""
    # The folder stores the heads of its log: another folder would consider this log damaged.
    folder = f" --data {shlex.quote(data_folder)}" if data_folder else ""
    return f"{password}rftd serve{folder} --kafka {kafka.url} --postgres {postgres.url}"


def _exists(folder: Path) -> bool:
    """True if a server was ever started in the folder: its ports are stored there."""
    return (folder / "ports.json").exists()


def _state(pid: int | None, ready: bool) -> str:
    """Returns `stopped` without a process, otherwise `running` or `starting`."""
    if pid is None:
        return "stopped"
    return "running" if ready else "starting"


def _concurrently(work: Sequence[Callable[[], Any]]) -> None:
    """Runs all functions concurrently; when all have ended, raises the first failure."""
    # Concurrently: each function takes seconds, mostly waiting.
    with ThreadPoolExecutor(len(work) or 1) as pool:
        futures = [pool.submit(function) for function in work]
    for future in futures:
        future.result()


_INTERVAL_S: Final = 0.2
"""Seconds between two looks at a server while it starts, serves or loses its clients."""
# Supervisors end all their processes at once, and honcho kills the remaining ones after 5 s: a short delay of the
# server allows daemon and workers to write their last records.
_CLIENTS_LEAVE_S: Final = 3.0
"""Maximum seconds waited for clients to disconnect before a server is stopped."""


async def run_until_told(server: KafkaBroker | PostgresServer, on_ready: Callable[[], None]) -> None:
    """Starts the server, or takes over a running one; stops it at SIGTERM or SIGINT, even during the start.

    Clients get a moment to disconnect first. Raises the errors of `start`, and UnreachableError if the server ends
    unexpectedly.
    """
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    # Not awaited here: a thread cannot be cancelled, and a signal arriving during the start must be handled as well.
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    while not starting.done() and not stop_requested.is_set():
        await asyncio.wait([starting], timeout=_INTERVAL_S)
    if not stop_requested.is_set():
        await starting
        on_ready()
        while not stop_requested.is_set() and server.pid is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop_requested.wait(), _INTERVAL_S)
        if not stop_requested.is_set():
            raise UnreachableError("the server ended by itself", where=str(server.log_path), fix="see its end")
        with suppress(TimeoutError):
            await asyncio.wait_for(_clients_gone(server.port), _CLIENTS_LEAVE_S)
    while not starting.done():  # before the process exists there is nothing to stop: try again
        await asyncio.to_thread(server.stop)
        await asyncio.wait([starting], timeout=_INTERVAL_S)
    with suppress(RftdError):
        await starting
    await asyncio.to_thread(server.stop)


async def _clients_gone(port: int) -> None:
    """Returns once no client is connected to the port."""
    while clients_of(port):  # noqa: ASYNC110 - the kernel has no event for it
        await asyncio.sleep(_INTERVAL_S)
