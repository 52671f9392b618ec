"""Where the log is: in a file that the daemon owns, behind a daemon's socket, or on a Kafka cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rftd.daemon.data_folder import DataFolder
from rftd.ops.clock import Clock
from rftd.ops.errors import UsageError
from rftd.ops.ids import Ids
from rftd.streams.backends.kafka.settings import KafkaSettings, kafka_url, parse_kafka
from rftd.streams.log import EventLog
from rftd.streams.socket.door import Door


class OwnedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The log of a daemon."""

    log: EventLog
    worker_url: str
    """Under which its workers find it; without secrets."""
    door: Door | None = None
    """The door of the embedded log, through which its workers append nothing before it is opened."""


@asynccontextmanager
async def owned_log(
    folder: DataFolder, kafka: KafkaSettings | None, *, clock: Clock, ids: Ids, refuse_loss: bool = True
) -> AsyncIterator[OwnedLog]:
    """The daemon's log while the block runs: the embedded one with its socket, or that of a Kafka cluster.

    Not to `refuse_loss` is for who has read `log.heads` before, hears the other survivors, and opens the door then.
    Raises ConflictError if another daemon holds the folder, LogError if the log refuses to open, UnreachableError if no
    broker answers.
    """
    if kafka is None:
        from rftd.streams.backends.sqlite import SqliteLog
        from rftd.streams.socket.server import LogServer

        embedded = await SqliteLog.open(folder.log, refuse_loss=refuse_loss)
        door = None if refuse_loss else Door()
        try:
            async with LogServer(embedded, folder.socket, file=embedded.path, door=door):
                yield OwnedLog(log=embedded, worker_url=f"unix:{folder.socket}", door=door)
        finally:
            await embedded.close()
        return
    from rftd.streams.backends.kafka.log import KafkaLog
    from rftd.streams.backends.kafka.topics import ensure_topics

    await ensure_topics(kafka)
    log = await KafkaLog.open(kafka, clock=clock, ids=ids)
    try:
        yield OwnedLog(log=log, worker_url=kafka_url(kafka))
    finally:
        await log.close()


@asynccontextmanager
async def log_to_read(folder: DataFolder, kafka: str | None, *, clock: Clock, ids: Ids) -> AsyncIterator[EventLog]:
    """The log of a folder, read-only, or that of a Kafka cluster, while the block runs; whether a daemon runs or not.

    Raises NotFoundError if the folder has none, UnreachableError if no broker answers.
    """
    if kafka is None:
        from rftd.streams.backends.sqlite_view import SqliteView

        log: EventLog = await SqliteView.open(folder.log)
    else:
        from rftd.streams.backends.kafka.log import KafkaLog

        log = await KafkaLog.open(parse_kafka(kafka), clock=clock, ids=ids)
    try:
        yield log
    finally:
        await log.close()


async def connect_log(url: str, *, clock: Clock, ids: Ids) -> EventLog:
    """The log at `unix:PATH` or `kafka://...`, for a process that does not own it.

    Raises UsageError for another URL, UnreachableError if nobody answers.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "unix" and rest:
        from rftd.streams.socket.client import SocketLog

        return await SocketLog.connect(Path(rest))
    if scheme == "kafka" and rest:
        from rftd.streams.backends.kafka.log import KafkaLog

        return await KafkaLog.open(parse_kafka(url), clock=clock, ids=ids)
    raise UsageError(f"no log at {url!r}", field="--log", fix="give unix:PATH or kafka://HOST:PORT")
