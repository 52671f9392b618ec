"""Emptying of the embedded log's write-ahead log (WAL): when to do so, and which processes prevent it.

`Checkpointer` copies it into the database in parallel to the writer, `WalKeeper` decides when the writer copies the
rest.

A reader with an open transaction keeps SQLite from emptying the WAL: commits continue and it grows. So nothing here
waits for readers. The thread copies all pages free to copy, the writer tries now and then, with growing pauses, and the
processes in the way are named: readers lock bytes of the `-shm` file, and the kernel lists the owners of locks.
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
"""Maximum number of passes over the WAL per request, so that a fast writer cannot keep the thread busy for ever."""


class Checkpointer:
    """A thread copying the WAL into the database over its own connection, so that the writer seldom has to.

    A WAL restarts only when all of it is copied and nobody writes. So, on each request, the thread copies the present
    pages, pass after pass, until few remain, and leaves those to the writer (`nearly_done`). An error ends
    the round, and the next request connects anew: nothing is lost, and the writer's own checkpoints report the error.
    """

    def __init__(self, path: Path) -> None:
        """Starts the thread."""
        self._path = path
        self._wanted = threading.Event()
        self._closing = False
        self._nearly_done = False
        self.copied = 0
        """Pages of the WAL already copied into the database, as of the last pass."""
        self._round_under_way = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="log-checkpointer", daemon=True)
        self._thread.start()

    @property
    def nearly_done(self) -> bool:
        """True once after each round of the thread that ended without an error: the writer's own checkpoint is then
        short. Reading resets it.
        """
        done = self._nearly_done
        self._nearly_done = False
        return done

    def want(self) -> None:
        """Requests a round of copying from the thread; during a round, one more follows. Returns at once."""
        self._wanted.set()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """A context during which the thread copies nothing, because SQLite refuses two checkpoints at a time."""
        with self._round_under_way:
            yield

    def close(self) -> None:
        """Ends the thread, waiting for its present pass."""
        self._closing = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        """Executes the rounds requested, until the close; after an error, the next round connects anew."""
        connection: apsw.Connection | None = None
        while True:
            self._wanted.wait()
            self._wanted.clear()  # before the round: a request from here on starts another round
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
        """Copies pages, pass after pass, until few remain."""
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
    """Closes a connection, if any; errors are ignored."""
    if connection is not None:
        with suppress(apsw.Error):  # a disk failing at the close too: the thread must live
            connection.close(True)


LOCKS: Final = Path("/proc/locks")
"""The kernel's list of locks."""
_READ_MARKS: Final = range(123, 128)
"""Bytes of the `-shm` file locked by SQLite's readers during a transaction."""
FIRST_WAIT_S: Final = 0.05
"""Seconds between the first two attempts to empty a large WAL; each later pause is twice as long."""
LONGEST_WAIT_S: Final = 2.0
"""Longest pause between two attempts."""
GROWTH: Final = 1.25
"""Growth of the WAL since the last attempt, as a factor, from which the next attempt is made at once."""


class Holder(msgspec.Struct, frozen=True):
    """A process that prevents emptying the WAL by a read transaction on the log's file."""

    pid: int
    """The process's id."""
    name: str
    """The name of the process's program."""


class Blocked(msgspec.Struct, frozen=True):
    """A large WAL that cannot be emptied, and the processes preventing it."""

    size_bytes: int
    """Size of the write-ahead log."""
    since_s: float
    """Monotonic time of the first failed attempt."""
    holders: tuple[Holder, ...]
    """Processes with open read transactions; empty if the system does not report them, or they have ended."""

    @property
    def who(self) -> str:
        """Names and ids of at most five of these processes, as text."""
        named_processes = [f"process {holder.pid} ({holder.name})" for holder in self.holders[:5]]
        return " or ".join(named_processes) or "an unknown process"

    @property
    def told(self) -> str:
        """Message for users, with the processes and a fix."""
        return (
            f"the log's write-ahead file has {self.size_bytes >> 20} MiB and cannot be emptied while {self.who} "
            "keeps a transaction open on it; appends continue; fix: end that process, or its transaction"
        )


@runtime_checkable
class HasWal(Protocol):
    """A log with a write-ahead log of known size."""

    @property
    def wal_size_bytes(self) -> int:
        """The size of the write-ahead log at the last commit, in bytes."""
        ...

    @property
    def blocked(self) -> Blocked | None:
        """Why the WAL cannot be emptied; None if it can, or is small."""
        ...


class WalKeeper:
    """Decides when to empty the WAL; used by the thread that owns the writing connection. Other threads may read
    `blocked` and `pages`.
    """

    def __init__(self, path: Path, checkpointer: Checkpointer, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begins with an empty write-ahead log; `now_s` is a monotonic clock."""
        self.blocked: Blocked | None = None
        self.pages = 0
        """Pages of the WAL as of the last commit."""
        self.tries = 0
        """Number of attempts to empty the WAL since it was last small."""
        self._path = path
        self._checkpointer = checkpointer
        self._now_s = now_s
        self._next_s = 0.0
        self._next_pages = 0
        self._wait_s = FIRST_WAIT_S

    @property
    def retry_s(self) -> float | None:
        """Seconds after which `look` has to be called even without a commit; None if that is not necessary."""
        return self._wait_s if self.pages >= schema.CHECKPOINT_FORCED_PAGES else None

    def look(self, connection: apsw.Connection) -> None:
        """Empties the WAL if it has grown enough; never waits for a reader. To be called after each commit."""
        if self.pages < schema.CHECKPOINT_PAGES:
            self._emptied()
        elif self.pages < schema.CHECKPOINT_FORCED_PAGES:
            # SQLite starts the file anew at the next commit if all of it is copied by then: the last pages are copied
            # here, by the committing thread, as only this thread can add more in between.
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
        """True if the next attempt is due, by the log's growth or by time."""
        return self.pages >= self._next_pages or self._now_s() >= self._next_s

    def _empty(self, connection: apsw.Connection) -> bool:
        """Tries to empty the WAL; True if it is empty now. The file of a large one is cut too."""
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
        """Begins anew after a successful attempt."""
        if self.tries:
            self.blocked = None
            self.tries = 0
            self._next_s = 0.0
            self._next_pages = 0
            self._wait_s = FIRST_WAIT_S
        self._checkpointer.copied = min(self._checkpointer.copied, self.pages)

    def _refused(self) -> None:
        """Notes an attempt prevented by readers: the next one comes later, and the readers are named."""
        now_s = self._now_s()
        self._next_pages = int(self.pages * GROWTH)
        self._next_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        since_s = self.blocked.since_s if self.blocked is not None else now_s
        present_holders = holders(self._path)
        self.blocked = (
            None
            if present_holders == ()
            else Blocked(self.pages * schema.PAGE_SIZE_BYTES, since_s, present_holders or ())
        )


def holders(path: Path) -> tuple[Holder, ...] | None:
    """Returns the other processes with an open transaction on the log at `path`; this process if it is the only one.

    None if the system does not report the holders of file locks.
    """
    try:
        inode = os.stat(f"{path}-shm").st_ino
        # The file itself is not opened: closing it again would drop the locks held by SQLite in this process.
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return None
    pids: dict[int, None] = {}
    for line in lines:
        fields = line.split()
        if len(fields) == 8 and fields[3] == "READ" and fields[5].rpartition(":")[2] == str(inode):
            pid = int(fields[4])
            first = int(fields[6])
            last = fields[7]
            if (
                any(first <= lock_byte and (last == "EOF" or lock_byte <= int(last)) for lock_byte in _READ_MARKS)
                and pid > 0
            ):
                pids[pid] = None
    other_pids = [pid for pid in pids if pid != os.getpid()]
    return tuple(Holder(pid, _name_of(pid)) for pid in other_pids or pids)


def _name_of(pid: int) -> str:
    """Returns a process's name; `gone` for an ended one."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
