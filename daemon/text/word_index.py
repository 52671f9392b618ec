"""`WordIndex`: words in the answers of experiments, in a file for each, filled slice by slice when words are searched.

The files are a cache beside the tables: never rebuilt or verified, and free to be removed at any time.
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

from rftd.daemon.run.operations import TextOrigin
from rftd.daemon.text.passages import turns_of
from rftd.daemon.text.texts import WantedText
from rftd.daemon.text.transcript import TextTools
from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import CodecError, RftdError, UsageError
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.registry import definition_of
from rftd.streams.folds.spine import Kept
from rftd.streams.log import topics
from rftd.streams.log.codec import decode, decode_head
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_PRODUCED: Final = definition_of(ExperienceProduced).name
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, experience BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS positions (partition INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(answer, content='', tokenize='unicode61');
"""
_VERSION: Final = 1
_RECORDS: Final = 256
"""Records read and decoded at a time."""


class IndexProgress(NamedTuple):
    """The indexed part of an experiment."""

    experiences: int
    share: float
    """Share of the log's records read so far, 0 to 1."""


class Matches(NamedTuple):
    """Experiences with the words in the answers, newest first, each with the number in the index."""

    places: list[tuple[int, UUID]]
    total: int


def match_expression(words: str) -> str:
    """Returns the query for all of the words; quoted words must follow each other. Raises UsageError."""
    quoted = words.split('"')
    phrases = [phrase for number, phrase in enumerate(quoted) if number % 2 for phrase in [phrase.strip()] if phrase]
    phrases += [word for number, text in enumerate(quoted) if number % 2 == 0 for word in text.split()]
    # Without letters and digits a phrase matches nothing, and an empty query is an error of SQLite.
    phrases = [phrase for phrase in phrases if any(character.isalnum() for character in phrase)]
    if not phrases:
        raise UsageError("no word to search for", field="q", fix='give words, or a "phrase in quotes"')
    return " AND ".join('"' + phrase.replace("\x00", " ") + '"' for phrase in phrases)


def matching(expression: str, answers: Sequence[str]) -> list[int]:
    """Returns the indices of the answers with the words, by the rules of an index. Blocks."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(_SCHEMA)
        rows = ((number, answer) for number, answer in enumerate(answers))
        connection.executemany("INSERT INTO words (rowid, answer) VALUES (?, ?)", rows)
        return [row[0] for row in connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (expression,))]
    finally:
        connection.close()


class WordIndex:
    """The indices of a daemon; one request at a time."""

    def __init__(self, folder: Path | None, clock: Clock) -> None:
        """`folder` has a file for each experiment; None keeps the indices in memory."""
        self._folder = folder
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="word-index")
        self._one = asyncio.Lock()
        self._opened: dict[UUID, sqlite3.Connection] = {}

    async def search(
        self, tools: TextTools, experiment: UUID, expression: str, *, before: int | None, limit: int
    ) -> tuple[Matches, IndexProgress]:
        """Returns matches after indexing for at most a second: repeated requests complete the index.

        Raises NotFoundError without a tokenizer.
        """
        async with self._one:
            progress = await self._filled(tools, experiment)
            return await self._run(self._search, experiment, expression, before, limit), progress

    async def forget(self, experiments: Sequence[UUID]) -> None:
        """Removes the indices of experiments."""
        async with self._one:
            for experiment in experiments:
                await self._run(self._forget, experiment)

    def present(self) -> list[UUID]:
        """Returns the experiments with a file."""
        if self._folder is None or not self._folder.is_dir():
            return []
        ids = []
        for path in self._folder.glob("*.db"):
            with suppress(ValueError):
                ids.append(UUID(path.stem))
        return ids

    async def _run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _filled(self, tools: TextTools, experiment: UUID) -> IndexProgress:
        origin = tools.origin
        assert origin is not None
        until_s = self._clock.monotonic_s() + limits.WORDS_SLICE_S
        await self._run(self._checked, experiment, origin)
        positions: dict[int, int] = await self._run(self._positions, experiment)
        heads = await tools.log.heads()
        starts = {head.partition: head.next_offset for head in origin.start if head.stream == topics.EXPERIENCES}
        pending = indexed = 0
        for partition, mark in sorted(heads.items()):
            if partition.stream != topics.EXPERIENCES:
                continue
            start = starts.get(partition.number, 0)
            offset = max(start, positions.get(partition.number, 0))
            while offset < mark.next_offset and self._clock.monotonic_s() < until_s:
                offset = await self._slice(tools, experiment, partition, offset, mark.next_offset)
            indexed += min(offset, mark.next_offset) - start
            pending += max(0, mark.next_offset - offset)
        count = await self._run(self._count, experiment)
        return IndexProgress(count, 1.0 if not pending else indexed / (indexed + pending))

    async def _slice(self, tools: TextTools, experiment: UUID, partition: Partition, offset: int, end: int) -> int:
        """Indexes the next records of a partition; returns the offset after them."""
        records = await tools.log.read(partition, offset, max_records=_RECORDS)
        if not records:
            return end
        answers = await _answers(tools, experiment, [record for record in records if record.offset < end])
        following = records[-1].offset + 1
        await self._run(self._add, experiment, answers, partition.number, following)
        return following

    def _connection(self, experiment: UUID) -> sqlite3.Connection:
        connection = self._opened.get(experiment)
        if connection is None:
            path = ":memory:" if self._folder is None else str(self._path(experiment))
            connection = sqlite3.connect(path, check_same_thread=False)
            try:
                connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;{_SCHEMA}")
            except sqlite3.DatabaseError:
                connection.close()
                raise
            self._opened[experiment] = connection
            while self._folder is not None and len(self._opened) > limits.WORDS_OPEN_INDICES:
                self._opened.pop(next(iter(self._opened))).close()
        return connection

    def _path(self, experiment: UUID) -> Path:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{experiment.hex}.db"

    def _checked(self, experiment: UUID, origin: TextOrigin) -> None:
        """Removes an index that is damaged, of another form, or older than dropped payloads."""
        stamp = _VERSION * 1_000_000 + origin.payloads_dropped_through % 1_000_000
        try:
            connection = self._connection(experiment)
            [version] = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError:
            version = -1
        if version not in (0, stamp):
            self._forget(experiment)
            connection = self._connection(experiment)
            version = 0
        if version != stamp:
            connection.execute(f"PRAGMA user_version = {stamp}")

    def _forget(self, experiment: UUID) -> None:
        if (connection := self._opened.pop(experiment, None)) is not None:
            connection.close()
        if self._folder is not None:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._path(experiment)}{suffix}").unlink(missing_ok=True)

    def _positions(self, experiment: UUID) -> dict[int, int]:
        return dict(self._connection(experiment).execute("SELECT partition, next_offset FROM positions"))

    def _count(self, experiment: UUID) -> int:
        [count] = self._connection(experiment).execute("SELECT COALESCE(MAX(number), 0) FROM answers").fetchone()
        return int(count)

    def _add(self, experiment: UUID, answers: Sequence[tuple[UUID, str]], partition: int, following: int) -> None:
        connection = self._connection(experiment)
        with connection:
            for id, answer in answers:
                added = connection.execute("INSERT OR IGNORE INTO answers (experience) VALUES (?)", (id.bytes,))
                if added.rowcount:  # else the record is a repetition
                    row = (added.lastrowid, answer)
                    connection.execute("INSERT INTO words (rowid, answer) VALUES (?, ?)", row)
            connection.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (partition, following))

    def _search(self, experiment: UUID, expression: str, before: int | None, limit: int) -> Matches:
        connection = self._connection(experiment)
        [total] = connection.execute("SELECT COUNT(*) FROM words WHERE words MATCH ?", (expression,)).fetchone()
        rows = connection.execute(
            """SELECT w.rowid, a.experience FROM (SELECT rowid FROM words WHERE words MATCH ? AND rowid < ?
                ORDER BY rowid DESC LIMIT ?) w JOIN answers a ON a.number = w.rowid ORDER BY w.rowid DESC""",
            (expression, before or 1 << 62, limit),
        )
        return Matches([(number, UUID(bytes=id)) for number, id in rows], int(total))


async def _answers(tools: TextTools, experiment: UUID, records: Sequence[Record]) -> list[tuple[UUID, str]]:
    """Returns the answers of an experiment among the records, except those without a payload."""
    requests: dict[UUID, tuple[int, WantedText]] = {}
    for record in records:
        try:
            head = decode_head(record)
            if head.experiment != experiment or head.type != _PRODUCED:
                continue
            event = decode(record).event
            if isinstance(event, ExperienceProduced):
                event = await tools.loaded(event)
                ids = b"".join(turn.answer.tobytes() for turn in turns_of(event, event.arrays))
                requests[event.experience] = (event.stage, WantedText(ids, special=False))
        except (CodecError, RftdError):  # a foreign record, or a dropped payload
            continue
    answers: list[tuple[UUID, str]] = []
    for stage in sorted({stage for stage, _ in requests.values()}):
        of_stage = {id: text for id, (number, text) in requests.items() if number == stage}
        texts, _ = await tools.texts.decode(tools.tokenizer(stage), list(of_stage.values()))
        answers += [(id, texts[text].text) for id, text in of_stage.items()]
    return answers


def is_gone(origin: TextOrigin | None) -> bool:
    """True if the texts of an experiment were removed or dropped."""
    return origin is None or origin.kept is Kept.REMOVED or origin.payloads_dropped
