"""Fixtures that several suites share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scene import Scene

sys.path.append(str(Path(__file__).parent / "synthetic"))  # writers of logs: `tape`, `synthetic_run`
sys.path.append(str(Path(__file__).parent))

pytest_plugins = ["servers"]  # a real Kafka and a real Postgres


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A real daemon on a folder of its own."""
    from scene import Scene

    made = Scene(tmp_path)
    with made.host:
        yield made
