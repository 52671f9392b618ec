"""A daemon without workers: a log with one synthetic run, its tables, and the API over both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.daemon.log_operations import LogOperations
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.api.app import make_app
from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.observe.doctor.abilities import Abilities
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.serve import report_pages
from rftd.daemon.trust.keyring import Keyring
from rftd.ops.clock import SystemClock
from rftd.ops.logs import logger
from rftd.ops.metrics import Metrics
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.projector.projector import Projector
from rftd.streams.log.log import EventLog
from rftd.streams.memory import MemoryLog

BASE = "http://127.0.0.1:7070"


@dataclass
class DaemonParts:
    """One daemon's parts."""

    app: FastAPI
    operations: LogOperations
    log: EventLog
    engine: AsyncEngine
    projector: Projector
    feed: MetricsFeed
    run: SyntheticRun
    """In the log, and applied."""
    job_dir: Path
    following: asyncio.Task[None]
    """What brings the tables up to the log; a test that cancels it has tables that lag."""

    def client(self, **headers: str) -> httpx.AsyncClient:
        """A client of the app, without a socket."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers)


@asynccontextmanager
async def open_daemon(
    folder: Path, *, token: str | None = None, run: SyntheticRun | None = None, tables: str = ""
) -> AsyncIterator[DaemonParts]:
    """Parts of a daemon with one run in its log, else a complete one named `small`; without the owner's `token` open to
    all. `tables` is the URL of the database; empty for a file in the folder.
    """
    clock = SystemClock()
    keyring = Keyring(folder, clock=clock, logger=logger(), from_environ=token) if token is not None else None
    job_dir = folder / "job"
    run = run or SyntheticRun(Recorder(), job_dir=str(job_dir), artifacts=ArtifactStore(job_dir / "artifacts")).write()
    log, engine = MemoryLog(), open_database(tables or sqlite_url(folder / "state.db"))
    for start in range(0, len(run.recorder.drafts), 100):
        await log.append(run.recorder.drafts[start : start + 100])
    projector = Projector(log, engine, clock=SystemClock())
    await projector.catch_up()
    feed = MetricsFeed(Metrics(version="1.2.3"))
    operations = LogOperations(log)
    app = make_app(
        operations=operations,
        log=log,
        engine=engine,
        projector=projector,
        feed=feed,
        doorkeeper=Doorkeeper(keyring),
        daemon_log=folder / "daemon.log",
        abilities=Abilities(),
        further=(report_pages.router,),
    )
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(projector.run())
        try:
            yield DaemonParts(app, operations, log, engine, projector, feed, run, job_dir, following)
        finally:
            following.cancel()
    await engine.dispose()
    await log.close()
