"""Real servers for tests: one Kafka and one Postgres for a run, started when a test first asks for them.

A test that kills or restarts a server starts its own, in a folder below `own_servers`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from synthetic.servers.end_servers import end_servers

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.daemon.stack.postgres import PostgresServer

T = TypeVar("T")

_NUMBERS = count(1)
_PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "alone")
"""The name of this process among those that run tests."""
_BEST_EFFORT_S = 30.0


class _Root:
    """The folder of a run's servers: deleted, and the servers ended, even if the run is killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rftd-tests-"))
        self.folder.chmod(0o711)  # a server of root's runs as another user
        program = Path(__file__).parent / "synthetic" / "servers" / "end_servers.py"
        self._watcher = subprocess.Popen(
            [sys.executable, "-P", str(program), str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )

    def close(self) -> None:
        self._watcher.communicate(timeout=120)


_ROOT = pytest.StashKey[_Root]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes of one run share its servers: it is told where they are, and whoever asks first starts them."""
    node.workerinput["servers"] = str(_root(node.config).folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _ROOT in config.stash:
        config.stash[_ROOT].close()


def _root(config: pytest.Config) -> _Root:
    if _ROOT not in config.stash:
        config.stash[_ROOT] = _Root()
    return config.stash[_ROOT]


@pytest.fixture(scope="session")
def shared_servers(request: pytest.FixtureRequest) -> Path:
    """The folder of the run's servers."""
    if request.config.getoption("fast"):
        pytest.fail("starts a server, and lacks the mark `servers`")
    told: dict[str, str] | None = getattr(request.config, "workerinput", None)
    return Path(told["servers"]) if told is not None else _root(request.config).folder


@pytest.fixture(scope="session")
def servers_folder(shared_servers: Path) -> Path:
    """The folder of the servers that no other process of the run knows."""
    folder = shared_servers / _PROCESS
    folder.mkdir()
    return folder


@pytest.fixture
def own_servers(servers_folder: Path) -> Iterator[Path]:
    """A folder for one test's own servers: they are ended after it."""
    folder = servers_folder / f"own-{next(_NUMBERS)}"
    folder.mkdir()
    yield folder
    end_servers(folder)


@pytest.fixture(scope="session")
def kafka_broker(shared_servers: Path) -> KafkaBroker:
    """The run's broker, which no test stops."""
    broker = KafkaBroker(shared_servers / "kafka")
    broker.start()  # at once if another process of the run has started it
    return broker


@pytest.fixture(scope="session")
def postgres_server(shared_servers: Path) -> PostgresServer:
    """The run's Postgres, which no test stops."""
    server = PostgresServer(shared_servers / "postgres", trust=True, durable=False)
    server.start()
    return server


@pytest.fixture
def kafka_prefix(kafka_broker: KafkaBroker) -> Iterator[str]:
    """The beginning of the names of one test's topics, which are deleted after it."""
    prefix = f"{_PROCESS}t{next(_NUMBERS)}."
    yield prefix
    with suppress(Exception):
        in_thread(_delete_topics(kafka_broker.direct_bootstrap, prefix))


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty database, dropped after the test."""
    name = f"{_PROCESS}t{next(_NUMBERS)}"
    in_thread(_execute(postgres_server.url, f"CREATE DATABASE {name}"))
    yield postgres_server.url_of(name)
    in_thread(_execute(postgres_server.url, f"DROP DATABASE {name} WITH (FORCE)"))


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, from a loop of its own in a thread of its own: a fixture may run beside a test's loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _delete_topics(bootstrap: str, prefix: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    async with asyncio.timeout(_BEST_EFFORT_S):
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            names = [name for name in await admin.list_topics() if name.startswith(prefix)]
            if names:
                await admin.delete_topics(names)
        finally:
            await admin.close()


async def _execute(url: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=_BEST_EFFORT_S)
    try:
        await connection.execute(statement, timeout=_BEST_EFFORT_S)
    finally:
        await connection.close()
