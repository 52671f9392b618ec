"""`PostgresServer`, from either set of binaries, as root too."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.stack import postgres
from rftd.daemon.stack.postgres import PostgresServer
from rftd.ops.errors import ConflictError, NotFoundError


def sql(url: str, statement: str, **options: Any) -> list[tuple[Any, ...]]:
    async def ask() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url, timeout=20, **options)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    return asyncio.run(ask())


def test_sigkill_and_restart_keep_what_was_committed(own_servers: Path) -> None:
    server = PostgresServer(own_servers / "pg")
    server.start()
    sql(server.url, "CREATE TABLE t AS SELECT 1 AS n")
    url, first = server.url, server.pid
    assert first is not None
    family = psutil.Process(first).children(recursive=True)
    assert server.kill()
    assert server.pid is None
    assert family
    assert not [child for child in family if child.is_running()]
    server.start()
    assert server.pid != first
    assert sql(url, "SELECT n FROM t") == [(1,)]
    found = PostgresServer(own_servers / "pg")  # by another command
    assert found.pid == server.pid
    assert found.url == url
    assert found.ready
    found.start()
    assert found.stop()
    assert not found.stop()
    assert server.pid is None
    with pytest.raises(ConflictError, match="runs already"):
        server.start()
        PostgresServer(own_servers / "pg", port=1)


def test_a_password_is_asked_for_and_lies_in_a_closed_file(own_servers: Path) -> None:
    server = PostgresServer(own_servers / "pg", durable=False)
    server.start()
    assert server.pass_file.stat().st_mode & 0o077 == 0
    assert sql(server.url_without_password, "SELECT 1", passfile=str(server.pass_file)) == [(1,)]
    with pytest.raises(asyncpg.InvalidPasswordError):
        sql(server.url_without_password, "SELECT 1", password="wrong")
    assert sql(server.url, "SHOW password_encryption") == [("scram-sha-256",)]
    assert sql(server.url, "SHOW listen_addresses") == [("127.0.0.1",)]


def test_the_packages_binaries_do_where_none_are_on_the_path(
    own_servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin")
    server = PostgresServer(own_servers / "pg", trust=True, durable=False)
    server.start()
    ((version,),) = sql(server.url, "SHOW server_version_num")
    assert int(version) >= 180000
    assert not server.pass_file.exists()


def test_no_binaries_at_all_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin")
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotFoundError) as caught:
        postgres.binaries()
    assert "rftd[stack]" in (caught.value.fix or "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root's server runs as another user")
def test_a_daemon_that_starts_while_a_cluster_is_initialised_leaves_it_reachable(
    own_servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataFolder(own_servers / "rftd-data")
    server = PostgresServer(data.root / "stack" / "postgres", durable=False)
    run = postgres._run

    def run_beside_a_daemon(*arguments: Any, **options: Any) -> None:
        data.prepare()
        run(*arguments, **options)

    monkeypatch.setattr(postgres, "_run", run_beside_a_daemon)
    server.start()
    assert server.data.parent == server.folder
    assert data.root.stat().st_mode & 0o777 == 0o711
    sql(server.url, "SELECT 1")


@pytest.mark.skipif(os.getuid() != 0, reason="only root's server runs as another user")
def test_under_a_closed_folder_the_cluster_goes_to_the_temporary_directory(own_servers: Path) -> None:
    closed = own_servers / "home"
    closed.mkdir(mode=0o700)
    server = PostgresServer(closed / "pg", durable=False)
    server.start()
    assert server.data.is_relative_to(tempfile.gettempdir())
    assert not server.data.is_relative_to(own_servers)
    assert closed.stat().st_mode & 0o777 == 0o700
    process = psutil.Process(server.pid)
    assert process.uids().real != 0
    assert process.gids().real == postgres.NO_GROUP
    sql(server.url, "CREATE TABLE t AS SELECT 1 AS n")
    server.stop()
    server.start()
    assert sql(server.url, "SELECT n FROM t") == [(1,)]
    cluster = server.data
    server.remove()
    assert not cluster.exists()
    assert not server.folder.exists()
