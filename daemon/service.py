"""One daemon, composed: log, log server, projections, supervisor, HTTP. Everything is wired here, in this order."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from rftd.daemon.api.app import make_app
from rftd.daemon.data_folder import DataFolder, Endpoint
from rftd.daemon.http_server import bind, serving_http, url_of
from rftd.daemon.installed import installed_version
from rftd.daemon.metrics_feed import MetricsFeed
from rftd.daemon.metrics_follower import follow_metrics
from rftd.daemon.supervisor.supervisor import Supervisor
from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import UsageError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.ops.metrics import Metrics
from rftd.storage.database import open_database
from rftd.storage.projector import Projector
from rftd.streams.backends.sqlite import SqliteLog
from rftd.streams.retention import enforce_retention
from rftd.streams.socket.server import LogServer
from rftd.workers.executors.local import LocalExecutor

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `rftd serve` was asked for."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 7070
    """0: a free one."""
    token: str | None = None
    """Asked of every request, if set; without one only loopback is served."""
    worker_lost_after_s: float = limits.WORKER_LOST_AFTER_S
    """A worker that sends no heartbeat for this long is ended and started anew."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A running daemon."""

    url: str
    folder: DataFolder
    supervisor: Supervisor
    projector: Projector


def tune_collector() -> None:
    """Looks for cyclic garbage seldom: folds keep hundreds of thousands of objects alive and make hardly a cycle."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@asynccontextmanager
async def running(options: ServiceOptions, *, clock: Clock, ids: Ids, logger: Logger) -> AsyncIterator[Service]:
    """A daemon for as long as the block runs. Leaving it drains the workers and closes everything, in reverse order.

    Raises ConflictError if another daemon holds the folder or the port, and LogError if the log refuses to open.
    """
    if options.host not in LOOPBACK and not options.token:
        raise UsageError(
            f"{options.host} is reachable from outside and no token is set",
            field="--host",
            fix="serve on 127.0.0.1, or set RFTD_TOKEN",
        )
    folder = DataFolder(options.data)
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(folder.prepare)
        log = await SqliteLog.open(folder.log)
        stack.push_async_callback(log.close)
        engine = open_database(folder.state_url)
        stack.push_async_callback(engine.dispose)
        projector = Projector(log, engine, clock=clock)
        await projector.open()
        bound = bind(options.host, options.port)
        stack.callback(bound.close)
        await stack.enter_async_context(LogServer(log, folder.socket, file=log.path))
        executor = LocalExecutor(f"unix:{folder.socket}")
        supervisor = Supervisor(
            log,
            executor,
            owner=ids.new(),
            clock=clock,
            ids=ids,
            logger=logger,
            lost_after_s=options.worker_lost_after_s,
        )
        feed = MetricsFeed(Metrics(version=installed_version()))
        app = make_app(
            operations=supervisor,
            log=log,
            engine=engine,
            projector=projector,
            feed=feed,
            clock=clock,
            ids=ids,
            token=options.token,
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        background = [tasks.create_task(projector.run()), tasks.create_task(supervisor.drive())]
        background.append(tasks.create_task(follow_metrics(log, feed)))
        background.append(tasks.create_task(enforce_retention(log, clock)))
        try:
            async with serving_http(app, bound):
                url = url_of(bound)
                await asyncio.to_thread(folder.announce, Endpoint(url=url, pid=os.getpid()))
                yield Service(url=url, folder=folder, supervisor=supervisor, projector=projector)
                await supervisor.drain()
        finally:
            for task in background:
                task.cancel()
