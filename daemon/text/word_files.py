"""`WordFiles`: indices of words in SQLite files, one per experiment, and the words of a search.

An index has words and ids alone; texts come from the log.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, TypeVarTuple
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import UsageError

T = TypeVar("T")
"""Type returned by work on the index's thread."""
Ts = TypeVarTuple("Ts")
"""Types of the arguments of work on the index's thread."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, experience BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS positions (partition INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(answer, content='', tokenize='unicode61');
"""
"""Statements that create the tables of an index."""


class Matches(NamedTuple):
    """Experiences whose answers contain the words, newest first."""

    places: list[tuple[int, UUID]]
    """Number in the index, and id, of each experience."""
    total: int
    """Number of all matches, including those not in `places`."""


def searched_phrases(words: str) -> list[str]:
    """Returns the phrases that a matching answer contains: words in double quotes, then single words. Raises UsageError
    without a word.
    """
    quoted = words.split('"')
    phrases = [phrase for number, phrase in enumerate(quoted) if number % 2 for phrase in [phrase.strip()] if phrase]
    phrases += [word for number, text in enumerate(quoted) if number % 2 == 0 for word in text.split()]
    # Without letters and digits a phrase matches nothing, and an empty query is an error of SQLite.
    phrases = [phrase for phrase in phrases if any(character.isalnum() for character in phrase)]
    if not phrases:
        raise UsageError("no word to search for", field="q", fix='give words, or a "phrase in quotes"')
    return phrases


def matching(phrases: Sequence[str], answers: Sequence[str]) -> list[int]:
    """Returns the indices of the answers that contain all phrases. Blocks."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(_SCHEMA)
        rows = ((number, answer) for number, answer in enumerate(answers))
        connection.executemany("INSERT INTO words (rowid, answer) VALUES (?, ?)", rows)
        return [
            row[0] for row in connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (_expression(phrases),))
        ]
    finally:
        connection.close()


def _expression(phrases: Sequence[str]) -> str:
    """Returns the FTS5 query for answers with all phrases."""
    return " AND ".join('"' + phrase.replace("\x00", " ").replace('"', " ") + '"' for phrase in phrases)


class WordFiles:
    """Indices of words in SQLite files, used by one thread."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` has a file for each experiment; None keeps the indices in memory."""
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="word-index")
        """The thread using SQLite."""
        self._connections: dict[UUID, sqlite3.Connection] = {}
        """Open indices by experiment."""

    async def present(self) -> list[UUID]:
        """Returns the ids of the experiments with an index file."""
        if self._folder is None or not self._folder.is_dir():
            return []
        ids = []
        for path in self._folder.glob("*.db"):
            with suppress(ValueError):
                ids.append(UUID(path.stem))
        return ids

    async def prepare(self, experiment: UUID, stamp: int) -> dict[int, int]:
        """Returns the next offset to index, by partition; a damaged index, or one with another stamp, is removed."""
        return await self._run_on_thread(self._prepare, experiment, stamp)

    async def remove(self, experiment: UUID) -> None:
        """Deletes an index."""
        await self._run_on_thread(self._remove, experiment)

    async def count(self, experiment: UUID) -> int:
        """Returns the number of indexed experiences."""
        return await self._run_on_thread(self._count, experiment)

    async def add(self, experiment: UUID, answers: Sequence[tuple[UUID, str]], partition: int, following: int) -> None:
        """Adds answers, and stores `following` as the next offset of the partition."""
        await self._run_on_thread(self._add, experiment, answers, partition, following)

    async def query(self, experiment: UUID, phrases: Sequence[str], before: int | None, limit: int) -> Matches:
        """Returns up to `limit` matches with numbers below `before`, newest first."""
        return await self._run_on_thread(self._query, experiment, _expression(phrases), before, limit)

    async def _run_on_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Runs work on the index's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _connection(self, experiment: UUID) -> sqlite3.Connection:
        """Returns the connection to an experiment's index, created if missing; closes the oldest connection beyond the
        limit.
        """
        connection = self._connections.get(experiment)
        if connection is None:
            path = ":memory:" if self._folder is None else str(self._path(experiment))
            connection = sqlite3.connect(path, check_same_thread=False)
            try:
                connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;{_SCHEMA}")
            except sqlite3.DatabaseError:
                connection.close()
                raise
            self._connections[experiment] = connection
            while self._folder is not None and len(self._connections) > limits.WORDS_OPEN_INDICES:
                self._connections.pop(next(iter(self._connections))).close()
        return connection

    def _path(self, experiment: UUID) -> Path:
        """Returns the file of an experiment's index."""
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{experiment.hex}.db"

    def _prepare(self, experiment: UUID, stamp: int) -> dict[int, int]:
        """Removes an unusable index; returns the next offset to index, by partition."""
        try:
            connection = self._connection(experiment)
            [version] = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError:
            version = -1
        if version not in (0, stamp):
            self._remove(experiment)
            connection = self._connection(experiment)
            version = 0
        if version != stamp:
            connection.execute(f"PRAGMA user_version = {stamp}")
        return dict(connection.execute("SELECT partition, next_offset FROM positions"))

    def _remove(self, experiment: UUID) -> None:
        """Closes and deletes an index."""
        if (connection := self._connections.pop(experiment, None)) is not None:
            connection.close()
        if self._folder is not None:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._path(experiment)}{suffix}").unlink(missing_ok=True)

    def _count(self, experiment: UUID) -> int:
        """Returns the number of indexed experiences."""
        [count] = self._connection(experiment).execute("SELECT COALESCE(MAX(number), 0) FROM answers").fetchone()
        return int(count)

    def _add(self, experiment: UUID, answers: Sequence[tuple[UUID, str]], partition: int, following: int) -> None:
        """Adds answers, and stores `following` as the next offset of the partition."""
        connection = self._connection(experiment)
        with connection:
            for id, answer in answers:
                added = connection.execute("INSERT OR IGNORE INTO answers (experience) VALUES (?)", (id.bytes,))
                if added.rowcount:  # else the record is a repetition
                    row = (added.lastrowid, answer)
                    connection.execute("INSERT INTO words (rowid, answer) VALUES (?, ?)", row)
            connection.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (partition, following))

    def _query(self, experiment: UUID, expression: str, before: int | None, limit: int) -> Matches:
        """Returns up to `limit` matches with numbers below `before`, newest first."""
        connection = self._connection(experiment)
        [total] = connection.execute("SELECT COUNT(*) FROM words WHERE words MATCH ?", (expression,)).fetchone()
        rows = connection.execute(
            """SELECT w.rowid, a.experience FROM (SELECT rowid FROM words WHERE words MATCH ? AND rowid < ?
                ORDER BY rowid DESC LIMIT ?) w JOIN answers a ON a.number = w.rowid ORDER BY w.rowid DESC""",
            (expression, before or 1 << 62, limit),
        )
        return Matches([(number, UUID(bytes=id)) for number, id in rows], int(total))
