"""What is wrong with a Postgres is said with what to do, and never with the password."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.until import until

from rftd.daemon.stack.postgres import PostgresServer
from rftd.ops import limits
from rftd.ops.clock import ManualClock, SystemClock
from rftd.ops.errors import ConflictError, RftdError, UnreachableError, UsageError
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio

SECRET = "hunter2-secret"


@pytest.fixture(scope="module")
def guarded(servers_folder: Path) -> Iterator[PostgresServer]:
    """A server that asks for a password."""
    server = PostgresServer(servers_folder / "guarded", durable=False)
    server.start()
    yield server
    server.kill()


async def refused(url: str) -> RftdError:
    """What opening the tables there says."""
    engine = open_database(url)
    projector = Projector(MemoryLog(), engine, clock=ManualClock())
    try:
        with pytest.raises(RftdError) as caught:
            await projector.open()
        return caught.value
    finally:
        await projector.close()
        await engine.dispose()


async def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        error = await refused(f"postgresql://app:{SECRET}@127.0.0.1:{port}/x")
    assert isinstance(error, UnreachableError)
    assert f"127.0.0.1:{port}" in str(error)
    assert "check host and port" in str(error)
    assert SECRET not in str(error)


async def test_a_host_that_does_not_exist() -> None:
    error = await refused(f"postgresql://app:{SECRET}@no-such-host.invalid/x")
    assert isinstance(error, UnreachableError)
    assert "no-such-host.invalid" in str(error)


async def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DATABASE_CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        error = await refused(f"postgresql://app@127.0.0.1:{mute.getsockname()[1]}/x")
    assert isinstance(error, UnreachableError)
    assert "does not answer within 0.2 s" in str(error)


async def test_a_wrong_password_and_none(
    guarded: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    caplog.set_level(logging.DEBUG)
    right = make_url(guarded.url)
    for wrong in (right.set(password=SECRET), right._replace(password=None), right.set(username="stranger")):
        error = await refused(wrong.render_as_string(hide_password=False))
        assert isinstance(error, UnreachableError)
        assert f"refused user {wrong.username}" in str(error)
        assert "PGPASSWORD" in str(error)
        shown = str(error) + repr(error.__cause__) + caplog.text
        assert SECRET not in shown
        assert str(right.password) not in shown


@pytest.mark.parametrize("way", ["PGPASSWORD", "PGPASSFILE"])
async def test_passwords_beside_the_url(guarded: PostgresServer, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    value = make_url(guarded.url).password if way == "PGPASSWORD" else str(guarded.pass_file)
    monkeypatch.setenv(way, str(value))
    engine = open_database(guarded.url_without_password)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT 1")) == 1
    await engine.dispose()


async def test_a_wrong_password_while_running_is_waited_out(
    guarded: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readiness says why; nothing crashes; the right one is taken up."""
    monkeypatch.setenv("PGPASSWORD", SECRET)
    engine = open_database(guarded.url_without_password)
    projector = Projector(MemoryLog(), engine, clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        await until(lambda: projector.last_error)
        said = str(projector.last_error)
        assert "wrong or missing password" in said
        assert SECRET not in said
        monkeypatch.setenv("PGPASSWORD", str(make_url(guarded.url).password))
        await until(lambda: projector.last_error is None)
        following.cancel()
    await engine.dispose()


async def test_a_database_that_does_not_exist(postgres_url: str) -> None:
    error = await refused(make_url(postgres_url).set(database="nowhere").render_as_string(hide_password=False))
    assert isinstance(error, UnreachableError)
    assert "createdb nowhere" in str(error)


@pytest.fixture
async def owner(postgres_url: str, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(postgres_url)
    yield engine
    await engine.dispose()


async def test_no_right_to_make_tables(postgres_url: str, owner: AsyncEngine) -> None:
    async with owner.begin() as connection:
        await connection.execute(text("CREATE ROLE guest LOGIN"))
    try:
        url = make_url(postgres_url).set(username="guest").render_as_string(hide_password=False)
        error = await refused(url)
        assert isinstance(error, UnreachableError)
        assert "no right to make tables" in str(error)
        granting = str(error.fix).partition(", or ")[2]
        async with owner.begin() as connection:
            await connection.execute(text(granting))
        engine = open_database(url)
        projector = Projector(MemoryLog(), engine, clock=ManualClock())
        await projector.open()
        await projector.close()
        await engine.dispose()
    finally:
        async with owner.begin() as connection:
            await connection.execute(text("DROP OWNED BY guest CASCADE"))
            await connection.execute(text("DROP ROLE guest"))


async def test_a_read_only_server(postgres_url: str, owner: AsyncEngine) -> None:
    async with owner.begin() as connection:
        await connection.execute(text(f'ALTER DATABASE "{owner.url.database}" SET default_transaction_read_only = on'))
    error = await refused(postgres_url)
    assert isinstance(error, UnreachableError)
    assert "name the primary" in str(error)


async def test_a_database_of_another_encoding(postgres_url: str, owner: AsyncEngine) -> None:
    async with owner.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        made = "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
        await connection.execute(text(made))
    error = await refused(make_url(postgres_url).set(database="latin").render_as_string(hide_password=False))
    async with owner.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("DROP DATABASE latin WITH (FORCE)"))
    assert isinstance(error, ConflictError)
    assert "LATIN1" in str(error)


async def test_urls_that_are_none() -> None:
    for url in (f"postgresql://app:{SECRET}@host:port/x", f"{SECRET}"):
        with pytest.raises(UsageError) as caught:
            open_database(url)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
    error = await refused(f"postgresql://app:{SECRET}@127.0.0.1:{os.getpid() % 9 + 1}/x?sslmode=sometimes")
    assert isinstance(error, UsageError)
    assert "sslmode" in str(error)
    assert SECRET not in str(error)


def test_an_engine_does_not_show_its_password() -> None:
    engine = open_database(f"postgresql://app:{SECRET}@127.0.0.1/x")
    assert SECRET not in repr(engine) + str(engine.url)
