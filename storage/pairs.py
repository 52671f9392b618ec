"""`Pair`: rows that two event types change, written once where both come in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from sqlalchemy import Dialect

from rftd.storage.upserts import Upsert, Values, statement_of


class Pair:
    """Two upserts of one table whose changes of a row mostly come together.

    They own different columns, so one statement that lets each part win or lose for itself leaves what the two leave.
    """

    def __init__(self, first: Upsert, second: Upsert) -> None:
        assert first.table is second.table and not set(first.owns) & set(second.owns)
        self.table = first.table
        self.parts: Final = (first, second)
        self.columns: Final = (*first.columns, *second.owns)
        self._key_size = len(first.key)
        self._key_of = itemgetter(*range(self._key_size))

    def statement(self, dialect: Dialect) -> str:
        """The SQL text, whose parameters are `columns` in order."""
        return statement_of(dialect, self.parts)

    def reduced(self, rows: list[Values]) -> list[Values]:
        """The rows: `joined` makes none of equal keys."""
        return rows

    def joined(self, rows: dict[Upsert | Pair, list[Values]]) -> None:
        """Makes one row of each two that have the same key."""
        first, second = self.parts
        ones = rows.get(first)
        others = rows.get(second)
        if not ones or not others:
            return
        keys = [self._key_of(row) for row in ones]
        by_key = dict(zip(map(self._key_of, others), others, strict=True))
        if len(by_key) < len(others) or len(set(keys)) < len(keys):
            return  # the rare event that is there twice: both parts find the winner for themselves
        both: list[Values] = []
        alone: list[Values] = []
        for key, row in zip(keys, ones, strict=True):
            other = by_key.pop(key, None)
            if other is None:
                alone.append(row)
            else:
                both.append(row + other[self._key_size :])
        # A row must not stay under its own upsert as well: the pair's statement writes the columns of both.
        for part, left in ((first, alone), (second, list(by_key.values())), (self, both)):
            rows.pop(part, None)
            if left:
                rows[part] = left


def joined(rows: dict[Upsert, list[Values]], pairs: Iterable[Pair]) -> dict[Upsert | Pair, list[Values]]:
    """The changes with as few rows as may be."""
    found: dict[Upsert | Pair, list[Values]] = dict(rows.items())
    for pair in pairs:
        pair.joined(found)
    return found
