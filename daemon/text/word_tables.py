# ruff: noqa: S608 (the names of tables are made of the ids of experiments; values are parameters)
"""`WordTables`: indices of words in Postgres, beside the tables of the projector; a table with a `tsvector` for each
experiment.

No rebuild reads or removes these tables. Postgres stores positions up to 16,383, and at most 256 of a word in an
answer; phrases further behind are not found, only their single words. The first 16,383 different words count.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.daemon.text.word_files import Matches

_PREFIX: Final = "words_of_"
"""Beginning of the name of each experiment's table."""
_INDICES: Final = """CREATE UNLOGGED TABLE IF NOT EXISTS word_indices (
    experiment uuid NOT NULL, partition integer NOT NULL, next_offset bigint NOT NULL,
    PRIMARY KEY (experiment, partition))"""
"""Statement that creates the table of positions; partition -1 has the stamp of the index."""
_STAMP: Final = -1
"""Number of the row with the stamp, among the partitions' rows."""
_WORD: Final = re.compile(r"[^\W_]+")
"""A word: letters and digits, as in SQLite's `unicode61`."""
_WORD_CHARACTERS: Final = 200
"""Characters of a word in the index; Postgres refuses words above 2 KB."""
_WORDS: Final = 16_383
"""Positions of an answer, and the maximum number of different words; Postgres refuses a tsvector above 1 MiB."""
_POSITIONS: Final = 256
"""Positions of a word in an answer."""


def words_in(answer: str) -> list[str]:
    """Returns the words of an answer in their order, in lower case and without diacritics."""
    plain = "".join(character for character in unicodedata.normalize("NFKD", answer) if not _is_mark(character))
    return [word[:_WORD_CHARACTERS] for word in _WORD.findall(plain.casefold())]


def vector(answer: str) -> str:
    """Returns the text of an answer's tsvector: each word with its positions."""
    positions: dict[str, list[str]] = {}
    for position, word in enumerate(words_in(answer), 1):
        if word in positions or len(positions) < _WORDS:
            places = positions.setdefault(word, [])
            if len(places) < _POSITIONS and (position <= _WORDS or not places):
                places.append(str(min(position, _WORDS)))
    return " ".join(f"'{word}':{','.join(places)}" for word, places in positions.items())


def query(phrases: Sequence[str]) -> str:
    """Returns the text of the tsquery for answers with all phrases; empty if no phrase has a word."""
    chains = [" <-> ".join(f"'{word}'" for word in words_in(phrase)) for phrase in phrases]
    return " & ".join(f"({chain})" for chain in chains if chain)


class WordTables:
    """Indices of words in Postgres; a second daemon may fill the same ones."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def present(self) -> list[UUID]:
        """Returns the ids of the experiments with an index."""
        async with self._engine.begin() as connection:
            await connection.execute(text(_INDICES))
            rows = await connection.execute(text("SELECT experiment FROM word_indices WHERE partition = -1"))
            return [UUID(str(row[0])) for row in rows]

    async def prepare(self, experiment: UUID, stamp: int) -> dict[int, int]:
        """Returns the next offset to index, by partition; an index with another stamp is emptied before."""
        async with self._engine.begin() as connection:
            await connection.execute(text(_INDICES))
            await connection.execute(text(_table(experiment)))
            rows = await connection.execute(
                text("SELECT partition, next_offset FROM word_indices WHERE experiment = :experiment"),
                {"experiment": experiment},
            )
            positions = {int(row[0]): int(row[1]) for row in rows}
            if positions.pop(_STAMP, None) == stamp:
                return positions
            # Also after a crash, which empties tables of this kind.
            await connection.execute(text(f"TRUNCATE {_name(experiment)}"))
            await connection.execute(
                text("DELETE FROM word_indices WHERE experiment = :experiment"), {"experiment": experiment}
            )
            await connection.execute(
                text("INSERT INTO word_indices VALUES (:experiment, :stamp_row, :stamp)"),
                {"experiment": experiment, "stamp_row": _STAMP, "stamp": stamp},
            )
            return {}

    async def remove(self, experiment: UUID) -> None:
        """Deletes an index."""
        async with self._engine.begin() as connection:
            await connection.execute(text(_INDICES))
            await connection.execute(
                text("DELETE FROM word_indices WHERE experiment = :experiment"), {"experiment": experiment}
            )
            await connection.execute(text(f"DROP TABLE IF EXISTS {_name(experiment)}"))

    async def count(self, experiment: UUID) -> int:
        """Returns the number of indexed experiences."""
        async with self._engine.connect() as connection:
            return int(await connection.scalar(text(f"SELECT COALESCE(MAX(number), 0) FROM {_name(experiment)}")) or 0)

    async def add(self, experiment: UUID, answers: Sequence[tuple[UUID, str]], partition: int, following: int) -> None:
        """Adds answers, and stores `following` as the next offset of the partition."""
        name = _name(experiment)
        async with self._engine.begin() as connection:
            # Against a second daemon: numbers are given by one transaction at a time.
            await connection.execute(text(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE"))
            if answers:
                await connection.execute(
                    text(f"""INSERT INTO {name} (number, experience, words)
                        SELECT (SELECT COALESCE(MAX(number), 0) FROM {name}) + ROW_NUMBER() OVER (ORDER BY position),
                            experience, words::tsvector
                        FROM (SELECT DISTINCT ON (experience) position, experience, words FROM unnest(
                            CAST(:experiences AS uuid[]), CAST(:vectors AS text[])
                        ) WITH ORDINALITY AS answer (experience, words, position) ORDER BY experience, position) fresh
                        WHERE NOT EXISTS (SELECT FROM {name} old WHERE old.experience = fresh.experience)"""),
                    {"experiences": [id for id, _ in answers], "vectors": [vector(answer) for _, answer in answers]},
                )
            await connection.execute(
                text("""INSERT INTO word_indices VALUES (:experiment, :partition, :following)
                    ON CONFLICT (experiment, partition) DO UPDATE SET next_offset = EXCLUDED.next_offset"""),
                {"experiment": experiment, "partition": partition, "following": following},
            )

    async def query(self, experiment: UUID, phrases: Sequence[str], before: int | None, limit: int) -> Matches:
        """Returns up to `limit` matches with numbers below `before`, newest first."""
        name, wanted = _name(experiment), {"query": query(phrases)}
        if not wanted["query"]:
            return Matches([], 0)
        condition = "words @@ CAST(CAST(:query AS text) AS tsquery)"
        async with self._engine.connect() as connection:
            total = await connection.scalar(text(f"SELECT COUNT(*) FROM {name} WHERE {condition}"), wanted)
            rows = await connection.execute(
                text(f"""SELECT number, experience FROM {name} WHERE {condition} AND number < :before
                    ORDER BY number DESC LIMIT :limit"""),
                {**wanted, "before": before or 1 << 62, "limit": limit},
            )
            return Matches([(int(row[0]), UUID(str(row[1]))) for row in rows], int(total or 0))


def _is_mark(character: str) -> bool:
    """True for a combining mark, such as an accent."""
    return unicodedata.category(character) == "Mn"


def _name(experiment: UUID) -> str:
    """Returns the name of an experiment's table."""
    return f"{_PREFIX}{experiment.hex}"


def _table(experiment: UUID) -> str:
    """Returns the statement that creates an experiment's table, with its index."""
    name = _name(experiment)
    # One statement, as the driver prepares each. Not in the write-ahead log: a crash empties a cache, no more.
    return f"""DO $$ BEGIN
        CREATE UNLOGGED TABLE IF NOT EXISTS {name} (
            number bigint PRIMARY KEY, experience uuid NOT NULL UNIQUE, words tsvector NOT NULL);
        CREATE INDEX IF NOT EXISTS {name}_words ON {name} USING gin (words);
    END $$"""
