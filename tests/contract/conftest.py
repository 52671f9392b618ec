"""The backends that every contract test of `EventLog` runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rftd.streams.backends.memory import MemoryFaults, MemoryLog
from rftd.streams.backends.sqlite import SqliteLog
from rftd.streams.log import EventLog
from rftd.streams.socket.client import SocketLog
from rftd.streams.socket.server import LogServer


class Harness:
    """Opens the same log again and again, as a restarted daemon would."""

    durable = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventLog]:
        log = await SqliteLog.open(self.folder)
        try:
            yield log
        finally:
            await log.close()


class MemoryHarness(Harness):
    durable = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventLog]:
        log = MemoryLog(MemoryFaults(seed=1, duplicate_p=0.2, delay_p=0.3))
        yield log
        await log.close()


class SocketHarness(Harness):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventLog]:
        async with super().open() as served:
            with TemporaryDirectory(prefix="rftd-") as runtime:  # socket paths must be short
                async with LogServer(served, Path(runtime) / "log.sock") as server:
                    log = await SocketLog.connect(server.path)
                    try:
                        yield log
                    finally:
                        await log.close()


class SocketAndFileHarness(Harness):
    """Reads go to the file that the daemon names."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventLog]:
        served = await SqliteLog.open(self.folder)
        with TemporaryDirectory(prefix="rftd-") as runtime:
            async with LogServer(served, Path(runtime) / "log.sock", file=served.path) as server:
                log = await SocketLog.connect(server.path)
                try:
                    yield log
                finally:
                    await log.close()
        await served.close()


BACKENDS = {"memory": MemoryHarness, "sqlite": Harness, "socket": SocketHarness, "socket+file": SocketAndFileHarness}


@pytest.fixture(params=sorted(BACKENDS))
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    return BACKENDS[request.param](tmp_path / "data")


@pytest.fixture
async def log(harness: Harness) -> AsyncIterator[EventLog]:
    async with harness.open() as opened:
        yield opened
