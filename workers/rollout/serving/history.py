"""`History`: the answers of an experiment, their feedback, and the taskset rows made of them.

An SQLite file in the experiment's folder. Every write is on disk once the method returns, so clients can rely on an
acknowledgement. A committed row never changes and never gets another number: the experiences of a lease follow from the
row, and a repeated lease gives equal experiences.

A history has an id, and a digest chained over the rows, carried into the log by every offer of rows: an older copy, or
another file under the same path, is refused before any further acknowledgement.

Several processes may share the file. The methods block; they may be called from any thread.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, msgpack_decoder
from rftd.ops.errors import ConflictError, DataError, DiskFullError, NotFoundError, RftdError, UsageError
from rftd.storage.files.served_history import BEGINNING, CHAIN, FILE, chained, difference, offer_of
from rftd.streams.events.task import TasksOffered
from rftd.workers.generation.endpoint.call_error import CallError
from rftd.workers.generation.response import Response
from rftd.workers.generation.sampling import trainable

_SCHEMA: Final = (
    """
CREATE TABLE IF NOT EXISTS runs (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  task TEXT NOT NULL, name TEXT NOT NULL, reward REAL NOT NULL,
  row INTEGER, place INTEGER,
  UNIQUE (task, name), UNIQUE (row, place));
CREATE TABLE IF NOT EXISTS answers (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE, key BLOB NOT NULL, parent TEXT NOT NULL, response BLOB NOT NULL,
  run INTEGER REFERENCES runs (number));
CREATE INDEX IF NOT EXISTS answers_by_key ON answers (key);
CREATE INDEX IF NOT EXISTS answers_by_run ON answers (run);
"""
    + CHAIN
)
"""Statements creating the tables."""
BY_IDS: Final = "*"
"""Placeholder for the answer of the run whose ids are the longest prefix of the prompt's ids."""
_BUSY_S: Final = 30.0
"""Longest wait for another writing process, in seconds."""
_encode: Final = msgspec.msgpack.Encoder().encode
"""Encoder of responses."""


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A stored answer of the model, linked to the earlier answer continued by its prompt."""

    id: str
    """Id of the answer, known to the client."""
    key: bytes
    """Digest of the conversation up to and including this answer, by which the next call finds it."""
    parent: str
    """Id of the answer continued by the prompt; empty at the start of a conversation, `BY_IDS` to search by
    token ids.
    """
    response: Response
    """The answer with its ids and log-probabilities."""


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """A client's reward for one or more answers, which together form a run."""

    reward: float
    """Reward of the run formed by the answers."""
    answers: tuple[str, ...]
    """Ids of the answers."""
    task: str = ""
    """Name of the task; runs of equal tasks are compared with each other. Empty for a task with this run only."""
    run: str = ""
    """Name of the run within its task; empty if the answers' ids name it."""


class CommittedRun(msgspec.Struct, frozen=True):
    """The answers of one run, in the order of their creation, and their reward."""

    reward: float
    """Reward of the run, as given by the client."""
    answers: tuple[KeptAnswer, ...]
    """The answers, in order."""


class Committed(msgspec.Struct, frozen=True):
    """The outcome of a commit: runs turned into rows, and runs still waiting for others."""

    runs: int
    """Runs turned into experiences for training."""
    groups: int
    """Number of new rows."""
    waiting: int
    """Runs with feedback, waiting for others of their task."""
    rows: int
    """Number of rows of all commits until now."""


class History:
    """The served conversations of one experiment: answers, feedback, and rows committed for training, in an SQLite
    file.
    """

    def __init__(self, folder: Path, new_id: Callable[[], UUID]) -> None:
        """Opens the file in `folder`, and creates both if missing. Raises DataError if the file is damaged.

        `new_id` returns the id of a new history.
        """
        self.path = folder / FILE
        """The SQLite file."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        """Held during a write."""
        try:
            # Separate from the writer, so that the event loop, which looks up conversations, never waits for a disk.
            self._writer = self._open_connection()
            self._reader = self._open_connection()
            self._writer.executescript(_SCHEMA)
            begin = "INSERT OR IGNORE INTO chain (row, digest) VALUES (?, ?)"
            self._writer.execute(begin, (BEGINNING, new_id().bytes))
            self._file = _file_at(self.path)
        except sqlite3.Error as error:
            raise self._error(error) from error

    def close(self) -> None:
        """Closes both connections to the file, the writer and the reader."""
        self._writer.close()
        self._reader.close()

    def record(self, answers: Sequence[KeptAnswer]) -> None:
        """Stores answers, and deletes old ones without feedback beyond the newest `limits.SERVED_ANSWERS`."""
        with self._transaction() as write:
            write.executemany(
                "INSERT INTO answers (id, key, parent, response) VALUES (?, ?, ?, ?)",
                [(answer.id, answer.key, answer.parent, _encode(answer.response)) for answer in answers],
            )
            write.execute(
                "DELETE FROM answers WHERE run IS NULL AND number <= (SELECT max(number) FROM answers) - ?",
                (limits.SERVED_ANSWERS,),
            )

    def find(self, key: bytes) -> KeptAnswer | None:
        """Returns the newest answer whose conversation has this key; None without one."""
        rows = self._select("SELECT * FROM answers WHERE key = ? ORDER BY number DESC LIMIT 1", (key,))
        return self._answer_of_row(rows[0]) if rows else None

    def judge(self, feedback: Feedback) -> bool:
        """Stores a client's feedback; False if equal feedback is stored already.

        Raises NotFoundError for an answer not stored here, ConflictError for feedback unlike an earlier one, UsageError
        for an answer that cannot be trained, CallError (429) if too many runs wait for a commit.
        """
        ids = tuple(dict.fromkeys(feedback.answers))
        answers_digest = hashlib.sha256("\0".join(sorted(ids)).encode()).hexdigest()
        task = f"task:{feedback.task}" if feedback.task else f"answers:{answers_digest}"
        name = f"run:{feedback.run}" if feedback.run else f"answers:{answers_digest}"
        with self._transaction() as write:
            rows = [
                row for id in ids for row in write.execute("SELECT id, run, response FROM answers WHERE id = ?", (id,))
            ]
            named = "SELECT number, reward FROM runs WHERE task = ? AND name = ?"
            stored_run = write.execute(named, (task, name)).fetchone()
            self._check_answers(ids, rows)
            if stored_run is not None:
                judged_ids = {id for (id,) in write.execute("SELECT id FROM answers WHERE run = ?", (stored_run[0],))}
                if judged_ids == set(ids) and stored_run[1] == feedback.reward:
                    return False
                raise ConflictError("this run already has other feedback", field="run_id", fix="give it once")
            judged = [id for id, run, _ in rows if run is not None]
            if judged:
                raise ConflictError(f"{judged[0]} already has other feedback", field="msg_ids", fix="give it once")
            waiting = write.execute("SELECT count(*) FROM runs WHERE row IS NULL").fetchone()[0]
            if waiting >= limits.SERVED_RUNS:
                message = f"{waiting} runs with feedback wait for a commit; POST /commit first, then send it again"
                raise CallError(429, message, kind="requests", reason="feedback_backlog_full")
            run_number = write.execute(
                "INSERT INTO runs (task, name, reward) VALUES (?, ?, ?)", (task, name, feedback.reward)
            ).lastrowid
            write.executemany("UPDATE answers SET run = ? WHERE id = ?", [(run_number, id) for id in ids])
        return True

    def commit(self, group_size: int) -> Committed:
        """Turns runs with feedback into rows, one row per `group_size` runs of one task; other runs wait for more."""
        with self._transaction() as write:
            row = first = write.execute("SELECT coalesce(max(row) + 1, 0) FROM runs").fetchone()[0]
            tasks: dict[str, list[int]] = {}
            for task, number in write.execute("SELECT task, number FROM runs WHERE row IS NULL ORDER BY number"):
                group = tasks.setdefault(task, [])
                group.append(number)
                if len(group) == group_size:
                    placed_runs = [(row, index, run_number) for index, run_number in enumerate(group)]
                    write.executemany("UPDATE runs SET row = ?, place = ? WHERE number = ?", placed_runs)
                    self._chain_row(write, row)
                    row += 1
                    group.clear()
        waiting = sum(len(group) for group in tasks.values())
        return Committed(runs=(row - first) * group_size, groups=row - first, waiting=waiting, rows=row)

    @property
    def rows(self) -> int:
        """Number of rows committed until now."""
        return int(self._select("SELECT coalesce(max(row) + 1, 0) FROM runs")[0][0])

    def offer(self, stage: int) -> TasksOffered | None:
        """Builds the event offering all committed rows to the dispatcher; None without rows."""
        rows = self.rows
        return offer_of(self._select, stage, rows) if rows else None

    def check(self, promised: TasksOffered | None) -> None:
        """Raises DataError if the file on disk was replaced since its opening, or lacks rows of the offer `promised` in
        the log.
        """
        lacks = "" if promised is None else difference(self._select, promised)
        if not self._in_place:
            lacks = "is missing, or another file is in its place"
        if lacks:
            raise lost(self.path, lacks)

    def run(self, row: int, index: int) -> CommittedRun:
        """Returns the committed run `index` of a row. Raises DataError if it is not stored here."""
        runs = self._select("SELECT number, reward FROM runs WHERE row = ? AND place = ?", (row, index))
        if not runs:
            raise DataError(
                f"row {row} has no run {index}", where=str(self.path), fix="restore the file, or submit again"
            )
        number, reward = runs[0]
        answers = self._select("SELECT * FROM answers WHERE run = ? ORDER BY number", (number,))
        return CommittedRun(reward, tuple(self._answer_of_row(answer_row) for answer_row in answers))

    def forget(self, row: int) -> None:
        """Deletes the tokens of rows before `row`, because their experiences are in the log."""
        with self._transaction() as write:
            write.execute("DELETE FROM answers WHERE run IN (SELECT number FROM runs WHERE row < ?)", (row,))

    def counts(self) -> dict[str, int]:
        """Returns the number of stored answers, of judged runs and of committed runs."""
        answers = self._select("SELECT count(*) FROM answers")[0][0]
        judged, committed = self._select("SELECT count(*), count(row) FROM runs")[0]
        return {"answers": answers, "judged": judged, "committed": committed}

    def _check_answers(self, ids: Sequence[str], rows: Sequence[tuple[str, int | None, bytes]]) -> None:
        """Raises an RftdError for answers that are missing or cannot be trained."""
        missing = sorted(set(ids) - {id for id, *_ in rows})
        if missing:
            raise NotFoundError(
                f"no answer {missing[0]!r} of this experiment is kept",
                field="msg_ids",
                fix="give the `id` of an answer",
            )
        for id, _, blob in rows:
            response = _decode_response(blob, self.path)
            if not all(trainable(span.temperature) for span in response.sampling):
                raise UsageError(
                    f"{id} was sampled at a temperature that cannot be trained", field="msg_ids", fix="ask for another"
                )

    def _answer_of_row(self, row: tuple[Any, ...]) -> KeptAnswer:
        """Returns the answer in a row of the table. Raises DataError for an answer that cannot be decoded."""
        _, id, key, parent, blob, _ = row
        return KeptAnswer(id=id, key=key, parent=parent, response=_decode_response(blob, self.path))

    def _open_connection(self) -> sqlite3.Connection:
        """Opens a connection to the file, with write-ahead log and full durability."""
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        # The file may come from an import: code put into its schema by a stranger is not run.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA journal_mode = WAL")
        # With WAL anything less would lose the last writes at a power loss.
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _select(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of a query. Raises DataError or DiskFullError for an error of SQLite."""
        try:
            return self._reader.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error

    @property
    def _in_place(self) -> bool:
        """True if the path still names the opened file."""
        return _file_at(self.path) == self._file

    @staticmethod
    def _chain_row(write: sqlite3.Connection, row: int) -> None:
        """Chains a committed row to the row before it."""
        before = write.execute("SELECT digest FROM chain WHERE row = ?", (row - 1,)).fetchone()[0]
        runs = write.execute("SELECT number, task, name, reward FROM runs WHERE row = ? ORDER BY place", (row,))
        answers = "SELECT id, response FROM answers WHERE run = ? ORDER BY number"
        content = [(*run, write.execute(answers, (number,)).fetchall()) for number, *run in runs.fetchall()]
        write.execute("INSERT INTO chain (row, digest) VALUES (?, ?)", (row, chained(before, content)))

    def _transaction(self) -> _Transaction:
        """Returns a transaction for a write. Raises DataError if the file was moved away."""
        self.check(None)  # nobody would find a write to a file that was moved away
        return _Transaction(self._writer, self._lock, self._error)

    def _error(self, error: sqlite3.Error) -> DiskFullError | DataError:
        """Returns the error of the project for one of SQLite's."""
        if error.sqlite_errorname in ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_IOERR_WRITE"):
            return DiskFullError(str(error), where=str(self.path), fix="free space; nothing of this was kept")
        return DataError(str(error), where=str(self.path), fix="restore the file, or submit again")


class _Transaction:
    """One write at a time, on disk when the block ends, or without any effect."""

    def __init__(
        self, connection: sqlite3.Connection, lock: threading.Lock, error_of: Callable[[sqlite3.Error], RftdError]
    ) -> None:
        """`error_of` converts SQLite's errors; `lock` is held until the end."""
        self._open_connection = connection
        self._lock = lock
        self._error_of = error_of

    def __enter__(self) -> sqlite3.Connection:
        self._lock.acquire()
        try:
            self._open_connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._lock.release()
            raise self._error_of(error) from error
        return self._open_connection

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._open_connection.execute("COMMIT")
        except sqlite3.Error as sqlite_error:
            raise self._error_of(sqlite_error) from sqlite_error
        finally:
            if self._open_connection.in_transaction:  # it failed, perhaps as it was committed
                self._open_connection.execute("ROLLBACK")
            self._lock.release()
        if isinstance(raised, sqlite3.Error):
            raise self._error_of(raised) from raised


def lost(path: Path, lacks: str) -> DataError:
    """Returns the error for a history file unlike the one promised in the log; `lacks` describes the difference."""
    fix = "restore the newest copy of the file and restart its explorer; or submit again"
    return DataError(f"the history of its conversations {lacks}", where=str(path), fix=fix)


def _file_at(path: Path) -> tuple[int, int]:
    """Returns the device and inode of a file; (0, 0) without one."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _decode_response(blob: bytes, path: Path) -> Response:
    """Decodes a stored response. Raises DataError for an unreadable one."""
    try:
        return msgpack_decoder(Response).decode(blob)
    except UNREADABLE as error:
        raise DataError(f"an answer cannot be read: {error}", where=str(path), fix="restore the file") from error
