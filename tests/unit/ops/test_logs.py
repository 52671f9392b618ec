"""Logging goes to standard error as it is at each line, and never ends a process."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from rftd.ops.clock import ManualClock
from rftd.ops.log_file import LogFile
from rftd.ops.logs import REMEMBERED, WINDOW_S, RepeatedLines, configure, logger


@pytest.fixture(autouse=True)
def settings_before() -> Iterator[None]:
    before = structlog.get_config()
    handlers = list(logging.root.handlers)
    level = logging.root.level
    yield
    structlog.configure(**before)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


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


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_has_every_line_as_json_in_one_order_and_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "daemon.log"
    configure(as_json=False, file=LogFile(path))
    forged = 'x\n{"time": "2026-01-01T00:00:00Z", "level": "error", "event": "forged"}\u2028\x1b[31m'
    logger(role="daemon").info("asked", step=1, name="n", api_key="sk-12345678", text=forged)
    logging.getLogger("some.package").warning("header %s", "Authorization: Bearer abcdefgh12345678")
    logging.getLogger("some.package").warning("%d %d", 1)
    logging.getLogger("some.package").info("nobody asked")
    try:
        raise ValueError("password=hunter22")
    except ValueError:
        logging.getLogger("asyncio").exception("a task failed")
    first, second, third, fourth = lines_of(path)
    assert list(first) == ["time", "level", "event", "role", "name", "step", "api_key", "text"]
    assert (first["api_key"], first["text"]) == ("***", forged)
    assert (second["level"], second["library"]) == ("warning", "some.package")
    assert third["event"] == "%d %d"
    assert "ValueError" in str(fourth["exception"])
    assert not [secret for secret in ("abcdefgh", "hunter22", "sk-1") if secret in path.read_text()]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_stays_small_and_follows_whoever_moves_it(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    file = LogFile(path, size_max_bytes=1000)
    for number in range(100):
        file.write(f"{number:03} {'x' * 95}")
    assert [len(each.read_text().splitlines()) for each in (path, file.older)] == [10, 10]
    assert path.read_text().splitlines()[-1].startswith("099")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["daemon.log", "daemon.log.1"]
    path.replace(tmp_path / "moved")
    file.write("here")
    assert path.read_text() == "here\n"
    beside = LogFile(path, size_max_bytes=1000)  # another process of the same folder, which puts the file away
    for number in range(20):
        beside.write(f"{number:03} {'x' * 95}")
    file.write("still here")
    assert path.read_text().endswith("still here\n")
    file.write("one line\ud800")
    file.close()
    file.write("again")
    assert path.read_text().endswith("again\n")


def test_a_file_that_cannot_be_written_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    LogFile(tmp_path / "link").write("a")
    assert not target.exists(), "not through a link"
    (tmp_path / "file").touch()
    LogFile(tmp_path / "file" / "daemon.log").write("a")
    LogFile(tmp_path).write("a")


def test_equal_warnings_are_counted_and_told_once_a_minute(tmp_path: Path) -> None:
    """A client that makes the daemon say one thing a thousand times a second fills no disk."""
    clock = ManualClock()
    told: list[dict[str, object]] = []
    lines = RepeatedLines(lambda level, fields: told.append({"level": level, **fields}), clock)

    def passes(level: str, **fields: object) -> bool:
        try:
            lines(None, level, fields)
        except structlog.DropEvent:
            return False
        return True

    assert passes("warning", event="no room", reason="files")
    assert [passes("warning", event="no room", reason="files") for _ in range(100_000)].count(True) == 0
    assert passes("warning", event="no room", reason="memory")  # another line
    assert passes("error", event="no room", reason="files")
    assert all(passes("info", event="step", number=1) for _ in range(3))
    assert told == []
    clock.advance(WINDOW_S)
    assert passes("info", event="anything")
    assert told == [{"level": "warning", "event": "no room", "reason": "files", "repeated": 100_000}]
    assert passes("warning", event="no room", reason="files")  # at once again, after the minute
    assert not passes("warning", event="no room", reason="files")
    lines.flush()
    assert told[1:] == [{"level": "warning", "event": "no room", "reason": "files", "repeated": 1}]


def test_different_lines_are_forgotten_before_they_fill_the_memory() -> None:
    told: list[object] = []
    lines = RepeatedLines(lambda level, fields: told.append(fields["event"]), ManualClock())
    for number in range(10 * REMEMBERED):
        for _ in range(2):
            with suppress(structlog.DropEvent):
                lines(None, "warning", {"event": f"line {number}"})
    assert told == [f"line {number}" for number in range(9 * REMEMBERED)]


def test_lines_of_asyncio_and_uvicorn_are_counted_as_well(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    configure(file=LogFile(path))
    for _ in range(1000):
        logging.getLogger("asyncio").error("socket.accept() out of system resource")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert [line["event"] for line in lines_of(path)] == [
        "socket.accept() out of system resource",
        "Invalid HTTP request received.",
    ]
