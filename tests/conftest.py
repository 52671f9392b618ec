"""Fixtures that several suites share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from synthetic.daemon.scene import Scene

sys.path.append(str(Path(__file__).parent))

os.environ.setdefault("RFTD_DISK_RESERVE", "0")  # a machine with little space runs the tests all the same

pytest_plugins = ["servers", "inner_loop"]  # a real Kafka and a real Postgres; `--fast`


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture(params=["embedded", pytest.param("production", marks=pytest.mark.servers)])
def pair(request: pytest.FixtureRequest) -> dict[str, str]:
    """Where log and state are, as the environment tells `rftd serve`: in files, or on a real Kafka and Postgres."""
    if request.param == "embedded":
        return {}
    bootstrap = request.getfixturevalue("kafka_broker").bootstrap
    prefix = request.getfixturevalue("kafka_prefix")
    return {
        "RFTD_KAFKA": f"kafka://{bootstrap}/?prefix={prefix}",
        "RFTD_POSTGRES": request.getfixturevalue("postgres_url"),
    }


@pytest.fixture
def scene(tmp_path: Path, pair: dict[str, str]) -> Iterator[Scene]:
    """A real daemon on a folder of its own; once with files, once on real servers."""
    from synthetic.daemon.scene import Scene

    made = Scene(tmp_path, environ=pair)
    with made.host:
        yield made


@pytest.fixture
def embedded_scene(tmp_path: Path) -> Iterator[Scene]:
    """A real daemon on a folder of its own, for what is about its files."""
    from synthetic.daemon.scene import Scene

    made = Scene(tmp_path)
    with made.host:
        yield made
