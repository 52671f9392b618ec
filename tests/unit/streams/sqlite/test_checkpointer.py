"""The write-ahead log moves into the database beside the writer, and starts anew."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from rftd.ops.clock import SystemClock
from rftd.streams.sqlite import schema
from rftd.streams.sqlite.wal import Checkpointer


def test_a_round_copies_what_is_there_and_leaves_the_writer_a_short_end(tmp_path: Path) -> None:
    path = tmp_path / schema.FILE_NAME
    writer = schema.connect_writer(path)
    checkpointer = Checkpointer(path)
    writer.execute("CREATE TABLE big(x)")
    for _ in range(10):
        writer.execute("INSERT INTO big VALUES(randomblob(1000000))")
    before = os.stat(path).st_size
    checkpointer.want()
    _wait_for_round(checkpointer, again=False)
    assert os.stat(path).st_size > before + 9_000_000, "copied by the other connection"
    assert not checkpointer.nearly_done, "said once"
    pages, moved = writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    assert pages == moved
    checkpointer.close()
    writer.close()


def test_an_error_ends_the_round_and_the_next_one_works(tmp_path: Path) -> None:
    path = tmp_path / schema.FILE_NAME
    checkpointer = Checkpointer(path)
    checkpointer.want()  # there is no file yet
    writer = schema.connect_writer(path)
    writer.execute("CREATE TABLE t(x)")
    _wait_for_round(checkpointer, again=True)
    checkpointer.close()
    checkpointer.close()
    writer.close()


def _wait_for_round(checkpointer: Checkpointer, *, again: bool) -> None:
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + 30
    while not checkpointer.nearly_done:
        assert clock.monotonic_s() < deadline_s
        if again:
            checkpointer.want()
