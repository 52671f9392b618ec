"""Databases of both kinds and a way to fill them from a recorder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.storage.database.engine import open_database, sqlite_url


@pytest.fixture
async def engine(tmp_path: Path, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    """A database in a file."""
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    yield engine
    await engine.dispose()


@pytest.fixture
async def postgres(postgres_url: str, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    """A new database of a real server."""
    engine = open_database(postgres_url)
    yield engine
    await engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def either_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "either.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def either(either_url: str, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    """An empty database of each kind."""
    engine = open_database(either_url)
    yield engine
    await engine.dispose()


@pytest.fixture(scope="session")
def run() -> SyntheticRun:
    """One small complete run with everything that goes wrong; read only."""
    return SyntheticRun(Recorder()).write()
