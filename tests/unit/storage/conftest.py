"""A database and a way to fill it from a tape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic_run import SyntheticRun
from tape import Tape

from rftd.storage.database import open_database, sqlite_url


@pytest.fixture
async def engine(tmp_path: Path, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    """A database in a file."""
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    yield engine
    await engine.dispose()


@pytest.fixture(scope="session")
def run() -> SyntheticRun:
    """One small complete run with everything that goes wrong; read only."""
    return SyntheticRun(Tape()).write()
