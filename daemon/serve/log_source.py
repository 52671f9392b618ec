"""A log source: a file owned by the daemon, or a `LogUrl` opened by its backend."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from rftd.daemon.cli.log_option import SHARED
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.address import find_folder
from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.folder_log import of_another_log
from rftd.ops.clock import Clock, SystemClock
from rftd.ops.errors import NotFoundError
from rftd.ops.ids import Ids, SystemIds
from rftd.storage.files.folder_owner import LogIdentity
from rftd.streams.log.backend import LogUrl, backend_of
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.lock_file import LockFile
from rftd.streams.sqlite.socket.append_gate import AppendGate

T = TypeVar("T")


class OwnedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The open log of a daemon, with its address for workers."""

    log: EventLog
    worker_url: str
    """Address of the log for workers, without secrets."""
    door: AppendGate | None = None
    """Gate deciding when workers may append to the embedded log; None for a log on a server."""


@asynccontextmanager
async def owned_log(
    folder: DataFolder,
    url: LogUrl | None,
    *,
    clock: Clock,
    ids: Ids,
    refuse_loss: bool = True,
    lock: LockFile | None = None,
) -> AsyncIterator[OwnedLog]:
    """A context with the daemon's open log: the embedded one with its socket, or the one at `url`.

    Without `refuse_loss` the caller has read `log.heads` before, compares the log with all other stored heads, and then
    permits appends. A `lock` already held on the embedded log is released with the log. Raises ConflictError if another
    daemon holds the folder, LogError if the log refuses to open, UnreachableError if there is no answer at `url`.
    """
    if url is None:
        from rftd.streams.sqlite.log import SqliteLog
        from rftd.streams.sqlite.socket.server import LogServer

        # Opened before the socket: the file's lock shows whether another daemon has the folder, whose socket must stay.
        embedded = await SqliteLog.open(folder.log, refuse_loss=refuse_loss, lock=lock)
        door = None if refuse_loss else AppendGate()
        ours = False
        try:
            async with LogServer(embedded, folder.socket, file=embedded.path, door=door):
                ours = True
                yield OwnedLog(log=embedded, worker_url=f"unix:{folder.socket}", door=door)
        finally:
            # Removed while the file is locked, so that a folder just created by another daemon is not affected.
            if ours:
                with suppress(OSError):
                    folder.socket.parent.rmdir()
            await embedded.close()
        return
    backend = backend_of(url)
    checked = backend.checked(url.text)
    log = await backend.open(checked, clock=clock, ids=ids)
    try:
        yield OwnedLog(log=log, worker_url=checked.text)
    finally:
        await log.close()


@asynccontextmanager
async def log_to_read(folder: DataFolder, url: LogUrl | None, *, clock: Clock, ids: Ids) -> AsyncIterator[EventLog]:
    """A context with a folder's log opened read-only, or the log at `url`, whether a daemon runs or not.

    Raises NotFoundError for a folder without a log, ConflictError for an unfinished import or backup, and
    UnreachableError if there is no answer at `url`.
    """
    if url is None:
        folder.check_whole()
        from rftd.streams.sqlite.view import SqliteView

        try:
            log: EventLog = await SqliteView.open(folder.log)
        except NotFoundError:
            if not of_another_log(folder, embedded=True):
                raise
            problem = f"the log of {folder.root} is elsewhere: its daemon was started with {SHARED}"
            raise NotFoundError(
                problem, where=str(folder.log_kind), fix=f"name it here too: {SHARED} HOST:PORT"
            ) from None
    else:
        log = await connect_log(url, clock=clock, ids=ids)
    try:
        yield log
    finally:
        await log.close()


async def identity_at(url: LogUrl) -> LogIdentity | None:
    """Returns the identity by which a log differs from its copies; None if its backend has none.

    Raises UnreachableError without an answer.
    """
    backend = backend_of(url)
    id = await backend.identity(url)
    return LogIdentity(id=id, place=backend.place(url)) if id else None


async def connect_log(url: LogUrl, *, clock: Clock, ids: Ids) -> EventLog:
    """Opens the log at `url` for a process not owning it.

    Raises ConfigError for a URL not accepted by the backend, UnreachableError without an answer.
    """
    backend = backend_of(url)
    return await backend.open(backend.checked(url.text), clock=clock, ids=ids)


def read_here(settings: Settings, log_at: LogUrl | None, work: Callable[[EventLog], Awaitable[T]]) -> T:
    """Awaits `work` on the log at `log_at`, or else in the data folder, for a verb without a daemon; returns its
    result.
    """

    async def read() -> T:
        folder = DataFolder(Path(find_folder(settings, os.environ)))
        clock = SystemClock()
        async with log_to_read(folder, log_at, clock=clock, ids=SystemIds(clock)) as log:
            if log_at is None and of_another_log(folder, embedded=True):
                say(f"note: the log in {folder.root} is an earlier one: its daemon used {SHARED} last", err=True)
            return await work(log)

    return asyncio.run(read())
