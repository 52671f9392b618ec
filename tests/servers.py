"""Real servers for tests: one Kafka and one Postgres for a session, started when a test first asks for them.

A test that kills or restarts a server starts its own, in a folder below `own_servers`.
"""

from __future__ import annotations

import asyncio
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
_BEST_EFFORT_S = 30.0


@pytest.fixture(scope="session")
def servers_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of this session's servers: deleted, and the servers ended, even if the session is killed."""
    if request.config.getoption("fast"):
        pytest.fail("starts a server, and lacks the mark `servers`")
    folder = Path(tempfile.mkdtemp(prefix="rftd-tests-"))
    folder.chmod(0o711)  # a server of root's runs as another user
    program = Path(__file__).parent / "synthetic" / "servers" / "end_servers.py"
    watcher = subprocess.Popen(
        [sys.executable, "-P", str(program), str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    yield folder
    watcher.communicate(timeout=120)


@pytest.fixture
def own_servers(servers_folder: Path) -> Iterator[Path]:
    """A folder for one test's own servers: they are ended after it."""
    folder = servers_folder / f"own-{next(_NUMBERS)}"
    folder.mkdir()
    yield folder
    end_servers(folder)


@pytest.fixture(scope="session")
def kafka_broker(servers_folder: Path) -> Iterator[KafkaBroker]:
    """The session's broker, which no test stops."""
    broker = KafkaBroker(servers_folder / "kafka")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def postgres_server(servers_folder: Path) -> Iterator[PostgresServer]:
    """The session's Postgres, which no test stops."""
    server = PostgresServer(servers_folder / "postgres", trust=True, durable=False)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def kafka_prefix(kafka_broker: KafkaBroker) -> Iterator[str]:
    """The beginning of the names of one test's topics, which are deleted after it."""
    prefix = f"t{next(_NUMBERS)}."
    yield prefix
    with suppress(Exception):
        in_thread(_delete_topics(kafka_broker.direct_bootstrap, prefix))


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty database, dropped after the test."""
    name = f"t{next(_NUMBERS)}"
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
