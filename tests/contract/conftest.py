"""The backends that every contract test of `EventLog` runs on."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.kafka.topics import delete_topics
from rftd.streams.log.log import EventLog
from rftd.streams.memory import MemoryFaults, MemoryLog
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.socket.client import SocketLog
from rftd.streams.sqlite.socket.server import LogServer

# Checks that are no tests of their own show their values too; before anything imports them.
pytest.register_assert_rewrite("rftd.workers.engines.contract.rollout.checks", "rftd.workers.engines.contract.trainer")


@pytest.fixture(scope="session")
def torch_device() -> str:
    """The device of the torch engines under contract: RFTD_TEST_DEVICE=cuda puts them on a GPU."""
    return os.environ.get("RFTD_TEST_DEVICE", "cpu")


class Harness:
    """Opens the same log again and again, as a restarted daemon would."""

    durable = True
    chained = True
    """Each record's chain covers those before it."""

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


class KafkaHarness(Harness):
    """A real broker, with topics of its own for each test."""

    chained = False

    def __init__(self, folder: Path, bootstrap: str) -> None:
        super().__init__(folder)
        prefix = f"contract-{SystemIds(SystemClock()).new().hex}."
        self.settings = KafkaSettings(bootstrap=bootstrap, prefix=prefix)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventLog]:
        clock = SystemClock()
        log = await KafkaLog.open(self.settings, clock=clock, ids=SystemIds(clock))
        try:
            yield log
        finally:
            await log.close()


BACKENDS = {
    "memory": MemoryHarness,
    "sqlite": Harness,
    "socket": SocketHarness,
    "socket+file": SocketAndFileHarness,
}


@pytest.fixture(params=[*sorted(BACKENDS), pytest.param("kafka", marks=pytest.mark.servers)])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    if request.param != "kafka":
        yield BACKENDS[request.param](tmp_path / "data")
        return
    broker: KafkaBroker = request.getfixturevalue("kafka_broker")
    made = KafkaHarness(tmp_path / "data", broker.bootstrap)
    yield made
    await delete_topics(made.settings)


@pytest.fixture
async def log(harness: Harness) -> AsyncIterator[EventLog]:
    async with harness.open() as opened:
        yield opened
