"""A real daemon's API on a loopback port, and a stranger on another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from synthetic.daemon.command_line import Served
from synthetic.daemon.served_daemon import served_daemon
from synthetic.daemon.stranger import Stranger, stranger_at_work


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The API over one complete run named `small`."""
    with served_daemon(tmp_path_factory.mktemp("parts")) as one:
        yield one


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """A server on a loopback port."""
    with stranger_at_work() as at_work:
        yield at_work
