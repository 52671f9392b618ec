"""A reader that keeps a transaction open slows nobody down: it is named, and the log is emptied once it has left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds, derive
from rftd.streams.log import topics
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite import schema, wal
from rftd.streams.sqlite.store import Store
from rftd.streams.sqlite.wal import Blocked, Checkpointer, Holder, WalKeeper, holders

COMMITS = 3000
HOME = Partition(topics.EXPERIENCES, 0)
READER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM part").get
print("reading", flush=True)
sys.stdin.read()
"""
on_linux = pytest.mark.skipif(not wal.LOCKS.exists(), reason="this system does not tell who holds a lock")


class Try(NamedTuple):
    """One attempt to empty the write-ahead log, or to copy some of it."""

    mode: int
    busy_timeout_ms: int | None


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[Try]:
    """Every checkpoint of every connection, on a small scale."""
    found: list[Try] = []

    class Noted(apsw.Connection):
        timeout_ms: int | None = None

        def set_busy_timeout(self, milliseconds: int) -> None:
            self.timeout_ms = milliseconds
            super().set_busy_timeout(milliseconds)

        def wal_checkpoint(self, dbname: Any = None, mode: int = apsw.SQLITE_CHECKPOINT_PASSIVE) -> Any:
            found.append(Try(mode, self.timeout_ms))
            return super().wal_checkpoint(dbname, mode)

    monkeypatch.setattr(schema.apsw, "Connection", Noted)
    for name, pages in (("CHECKPOINT_PAGES", 20), ("CHECKPOINT_REST_PAGES", 5), ("CHECKPOINT_FORCED_PAGES", 60)):
        monkeypatch.setattr(schema, name, pages)
    return found


@pytest.fixture
def store(tmp_path: Path, tries: list[Try]) -> Iterator[Store]:
    opened = Store(tmp_path / schema.FILE_NAME, lambda _: None)
    yield opened
    opened.close()


def write(store: Store, commits: int, ids: SystemIds) -> None:
    for _ in range(commits):
        id = ids.new()
        store.commit([Draft(HOME, id, b"head", derive(id, "value").bytes * 8)])
        store.settle()


@pytest.mark.slow
def test_commits_do_not_wait_for_a_reader_who_is_named(tmp_path: Path, store: Store, tries: list[Try]) -> None:
    ids = SystemIds(SystemClock())
    path = tmp_path / schema.FILE_NAME
    write(store, 50, ids)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    try:
        tries.clear()
        write(store, COMMITS, ids)
        emptying = [each for each in tries if each.mode != apsw.SQLITE_CHECKPOINT_PASSIVE]
        assert {each.busy_timeout_ms for each in emptying} <= {0}, "the writer's thread waited for a reader"
        assert store.wal.tries < COMMITS / 10, "one that is in the way is asked seldom"
        blocked = store.wal.blocked
        assert blocked is not None
        assert store.wal.pages > COMMITS
        assert blocked.size_bytes > schema.CHECKPOINT_FORCED_PAGES * schema.PAGE_SIZE_BYTES
        if wal.LOCKS.exists():
            assert blocked.holders == (Holder(reader.pid, blocked.holders[0].name),)
            assert f"process {reader.pid} (python" in blocked.told
    finally:
        reader.communicate("")
    large = os.path.getsize(f"{path}-wal")
    while (retry_s := store.wal.retry_s) is not None:  # as the writer's thread does while nothing is written
        assert retry_s <= wal.LONGEST_WAIT_S
        store.settle()
    assert store.wal.blocked is None
    assert store.wal.pages == 0
    assert os.path.getsize(f"{path}-wal") < large / 10
    write(store, 10, ids)
    assert store.heads[HOME].next_offset == 50 + COMMITS + 10


def test_a_large_one_is_left_to_the_thread_beside_the_writer(tmp_path: Path, store: Store, tries: list[Try]) -> None:
    class Idle(Checkpointer):
        wanted = 0

        def want(self) -> None:
            self.wanted += 1

    now = [0.0]
    beside = Idle(tmp_path / schema.FILE_NAME)
    keeper = WalKeeper(tmp_path / schema.FILE_NAME, beside, now_s=lambda: now[0])
    keeper.pages = 3 * schema.CHECKPOINT_FORCED_PAGES
    tries.clear()
    for _ in range(5):
        keeper.look(store.connection)
    assert (tries, beside.wanted, keeper.tries) == ([], 1, 1), "not before it is due again"
    now[0] = wal.FIRST_WAIT_S
    keeper.look(store.connection)
    assert beside.wanted == 2
    beside.copied = keeper.pages - 1
    now[0] += wal.LONGEST_WAIT_S
    keeper.look(store.connection)
    assert [each.mode for each in tries] == [apsw.SQLITE_CHECKPOINT_TRUNCATE]
    assert keeper.retry_s is None
    beside.close()


@on_linux
def test_a_reader_of_this_process_is_named_if_no_other_is(tmp_path: Path, store: Store) -> None:
    path = tmp_path / schema.FILE_NAME
    assert holders(path) == ()
    own = schema.connect_reader(path)
    own.execute("BEGIN")
    assert own.execute("SELECT count(*) FROM part").get == 0
    assert [each.pid for each in holders(path) or ()] == [os.getpid()]
    own.close()
    assert holders(path) == ()
    assert holders(tmp_path / "none") is None


def test_a_system_that_does_not_tell_is_said_so(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "LOCKS", tmp_path / "none")
    assert holders(tmp_path / schema.FILE_NAME) is None
    assert "an unknown process keeps a transaction open" in Blocked(1 << 30, 0.0, ()).told
