"""Checkpoints beside the writer: the write-ahead log moves into the database while commits go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from rftd.streams.backends import sqlite_schema as schema

PASSES: Final = 6


class Checkpointer:
    """A thread with a connection of its own. What it copies, the writer need not wait for.

    A write-ahead log starts anew only when all of it is copied and nobody writes, so each round copies what there is,
    again and again, until the rest is small, and then leaves that to the writer (`nearly_done`). An error ends a round:
    nothing is lost, the writer's own checkpoints remain, and they report it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wanted = threading.Event()
        self._closing = False
        self._nearly_done = False
        self.copied = 0
        """Pages of the write-ahead log that are in the database, as the last pass left it."""
        self._round_under_way = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="log-checkpointer", daemon=True)
        self._thread.start()

    @property
    def nearly_done(self) -> bool:
        """True once after each round: the writer's own checkpoint is short now."""
        done, self._nearly_done = self._nearly_done, False
        return done

    def want(self) -> None:
        """Starts a round unless one is under way."""
        self._wanted.set()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """No round is under way while the block runs: SQLite refuses a second checkpoint at once, without waiting."""
        with self._round_under_way:
            yield

    def close(self) -> None:
        """Ends the thread; blocks while a pass is under way."""
        self._closing = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while True:
            self._wanted.wait()
            self._wanted.clear()  # before looking: a wish made from here on starts another round
            if self._closing:
                break
            with self._round_under_way:
                try:
                    if connection is None:
                        connection = schema.connect_checkpointer(self._path)
                    self._round(connection)
                except (apsw.Error, OSError):
                    _close(connection)
                    connection = None
        _close(connection)

    def _round(self, connection: apsw.Connection) -> None:
        copied = 0
        for _ in range(PASSES):
            if self._closing:
                return
            with suppress(apsw.BusyError):
                _, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self.copied = moved
                if moved - copied <= schema.CHECKPOINT_REST_PAGES:
                    break
                copied = moved
        self._nearly_done = True


def _close(connection: apsw.Connection | None) -> None:
    if connection is not None:
        with suppress(apsw.Error):  # a disk that fails at the close too: the thread must live
            connection.close(True)
