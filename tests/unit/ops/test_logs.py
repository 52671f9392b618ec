"""Logging goes to standard error as it is at each line, and never ends a process."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from rftd.ops.logs import configure, logger


@pytest.fixture(autouse=True)
def settings_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_stream_that_is_closed_or_gone_loses_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    first = io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure()
    log = logger()
    log.info("first", key="value")
    assert '"event": "first"' in first.getvalue()
    first.close()
    log.info("lost")
    second = io.StringIO()
    monkeypatch.setattr(sys, "stderr", second)
    log.info("second")
    assert '"event": "second"' in second.getvalue()
    assert "lost" not in second.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    log.info("nobody reads this")
