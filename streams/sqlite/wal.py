"""The write-ahead log (WAL) of the embedded log: when it is emptied, and who is in the way.

`Checkpointer` copies it into the database beside the writer, `WalKeeper` decides when the rest is moved.

A reader with an open transaction keeps SQLite from emptying the WAL: commits go on and it grows. So nobody waits for
readers. The thread beside the writer copies what may be copied, the writer tries now and then, each time later, and
the processes in the way are named: readers lock bytes of the `-shm` file, and the kernel lists who holds which.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import apsw
import msgspec

from rftd.streams.sqlite import schema

PASSES: Final = 6
"""The passes of one round at most: a writer that fills the log as fast as it is copied would keep a round going."""


class Checkpointer:
    """A thread with a connection of its own, so that the writer need not wait for what it copies.

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
        """True once after each round, when the writer's own checkpoint is short."""
        done = self._nearly_done
        self._nearly_done = False
        return done

    def want(self) -> None:
        """Starts a round unless one is under way."""
        self._wanted.set()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """A block in which no round is under way: SQLite refuses a second checkpoint at once, without waiting."""
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
                # PASSIVE is the only mode that neither blocks the writer nor is blocked by readers.
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


LOCKS: Final = Path("/proc/locks")
_READ_MARKS: Final = range(123, 128)
"""Bytes of the `-shm` file that SQLite's readers lock while a transaction of theirs is open."""
FIRST_WAIT_S: Final = 0.05
"""The wait between the first two tries to empty a large WAL; each later wait is twice as long."""
LONGEST_WAIT_S: Final = 2.0
GROWTH: Final = 1.25
"""The growth of the WAL since the last try after which the next try does not wait."""


class Holder(msgspec.Struct, frozen=True):
    """A process that reads the log's file within a transaction."""

    pid: int
    name: str
    """The name of its program."""


class Blocked(msgspec.Struct, frozen=True):
    """A write-ahead log that cannot be emptied, and the processes in the way."""

    size_bytes: int
    since_s: float
    """The beginning of that, on the monotonic clock."""
    holders: tuple[Holder, ...]
    """Empty where the system does not tell, and once they have left."""

    @property
    def who(self) -> str:
        """The holders in words."""
        named = [f"process {each.pid} ({each.name})" for each in self.holders[:5]]
        return " or ".join(named) or "a process that this system does not name"

    @property
    def told(self) -> str:
        """The message for people: who is in the way, and the fix."""
        return (
            f"the log's write-ahead file has {self.size_bytes >> 20} MiB and cannot be emptied while {self.who} "
            "keeps a transaction open on it; appends go on; fix: end that process, or its transaction"
        )


@runtime_checkable
class HasWal(Protocol):
    """A log whose writes go through a write-ahead log."""

    @property
    def wal_size_bytes(self) -> int:
        """The size of the write-ahead log at the last commit."""
        ...

    @property
    def blocked(self) -> Blocked | None:
        """The obstacle to emptying it; None while it can be emptied, or is small."""
        ...


class WalKeeper:
    """The decision when the WAL is moved into the database, taken by the thread that owns the writing connection.

    Other threads may read `blocked` and `pages`.
    """

    def __init__(self, path: Path, checkpointer: Checkpointer, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.blocked: Blocked | None = None
        self.pages = 0
        """Pages of the write-ahead log, as the last commit left it."""
        self.tries = 0
        """The number of tries to empty the WAL since it was last small."""
        self._path = path
        self._checkpointer = checkpointer
        self._now_s = now_s
        self._next_s = 0.0
        self._next_pages = 0
        self._wait_s = FIRST_WAIT_S

    @property
    def retry_s(self) -> float | None:
        """The seconds after which to `look` again although nothing was written; None if there is no need."""
        return self._wait_s if self.pages >= schema.CHECKPOINT_FORCED_PAGES else None

    def look(self, connection: apsw.Connection) -> None:
        """Has the WAL moved into the database if it has grown. Never waits for a reader."""
        if self.pages < schema.CHECKPOINT_PAGES:
            self._emptied()
        elif self.pages < schema.CHECKPOINT_FORCED_PAGES:
            # SQLite starts the file anew at the next commit if all of it is copied then, so the last pages are copied
            # here, by the thread that commits: nobody can add to them in between.
            if self._checkpointer.nearly_done:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                self._checkpointer.want()
        elif self._due():
            self.tries += 1
            if self.pages - self._checkpointer.copied > schema.CHECKPOINT_FORCED_PAGES:
                self._checkpointer.want()  # too much for the writer's thread, or a reader is in the way
                self._refused()
            elif self._empty(connection):
                self.pages = 0
                self._emptied()
            else:
                self._refused()

    def _due(self) -> bool:
        return self.pages >= self._next_pages or self._now_s() >= self._next_s

    def _empty(self, connection: apsw.Connection) -> bool:
        """True if the WAL is empty now; the file of a large one is cut too."""
        # TRUNCATE gives the space back to the disk; RESTART keeps the file's blocks, for the next commits to overwrite.
        large = self.pages >= 2 * schema.CHECKPOINT_FORCED_PAGES
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if large else apsw.SQLITE_CHECKPOINT_RESTART
        connection.set_busy_timeout(0)  # else both modes would wait for readers, and every append behind them
        try:
            connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            return False
        finally:
            connection.set_busy_timeout(schema.BUSY_TIMEOUT_MS)
        return True

    def _emptied(self) -> None:
        if self.tries:
            self.blocked = None
            self.tries = 0
            self._next_s = 0.0
            self._next_pages = 0
            self._wait_s = FIRST_WAIT_S
        self._checkpointer.copied = min(self._checkpointer.copied, self.pages)

    def _refused(self) -> None:
        now_s = self._now_s()
        self._next_pages = int(self.pages * GROWTH)
        self._next_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        since_s = self.blocked.since_s if self.blocked is not None else now_s
        found = holders(self._path)
        self.blocked = None if found == () else Blocked(self.pages * schema.PAGE_SIZE_BYTES, since_s, found or ())


def holders(path: Path) -> tuple[Holder, ...] | None:
    """The other processes that have a transaction open on the log at `path`; this one if it is the only one.

    None if the system does not tell.
    """
    try:
        inode = os.stat(f"{path}-shm").st_ino
        # The file itself is not opened: to close it again would drop the locks that SQLite holds in this process.
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return None
    found: dict[int, None] = {}
    for line in lines:
        fields = line.split()
        if len(fields) == 8 and fields[3] == "READ" and fields[5].rpartition(":")[2] == str(inode):
            pid = int(fields[4])
            first = int(fields[6])
            last = fields[7]
            if any(first <= mark and (last == "EOF" or mark <= int(last)) for mark in _READ_MARKS) and pid > 0:
                found[pid] = None
    others = [pid for pid in found if pid != os.getpid()]
    return tuple(Holder(pid, _name_of(pid)) for pid in others or found)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
