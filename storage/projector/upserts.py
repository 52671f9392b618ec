"""`Upsert`: the columns that an event type owns, and the one SQL statement that writes them.

Each event type writes only columns that it owns, and of two events that claim the same columns of the same row the one
with the lower place in the log wins (`FIRST`) or the higher (`LAST`). So the tables do not depend on how partitions
interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import isnan
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Dialect,
    Double,
    LargeBinary,
    String,
    bindparam,
    column,
    func,
    literal_column,
    or_,
    select,
    table,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.types import TypeEngine

from rftd.storage.database.tables.base import Row, table_of
from rftd.streams.log.envelope import Decoded

Value = bytes | str | int | float | bool | None
Values = tuple[Value, ...]
Columns = ReadOnlyColumnCollection[str, Any]

_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 63) - 1
_INDEXED_SIZE_BYTES: Final = 2000
"""The longest text in a key or an index: Postgres refuses entries of more than 2.7 KB."""
_ELEMENTS: Final[dict[type, TypeEngine[Any]]] = {
    bytes: LargeBinary(),
    str: String(),
    int: BigInteger(),
    float: Double(),
    bool: Boolean(),
}


class Rule(Enum):
    """The rule by which one of two events keeps the columns that both own."""

    FIRST = "first"
    LAST = "last"


class Upsert:
    """The columns of `kind` that one event type owns, beside the row's key.

    `place` is the prefix of the columns that hold the winner's place in the log: PLACE_partition, PLACE_offset and, if
    the table has it, PLACE_ns. They are filled in from the record. `final` names an owned column and the values that
    nothing replaces.
    """

    def __init__(
        self,
        kind: type[Row],
        *,
        place: str,
        owns: Sequence[str] = (),
        rule: Rule = Rule.FIRST,
        final: tuple[str, Sequence[str]] | None = None,
    ) -> None:
        self.table = table_of(kind)
        self.key: Final = tuple(column.name for column in self.table.primary_key.columns)
        self.partition = f"{place}_partition"
        self.offset = f"{place}_offset"
        time = f"{place}_ns"
        self.time = time if time in self.table.columns else None
        stamps = (self.partition, self.offset, *((time,) if self.time else ()))
        self.owns: Final = (*owns, *stamps)
        self.columns: Final = (*self.key, *self.owns)
        assert all(name in self.table.columns for name in self.columns), (self.table.name, self.owns)
        self._rule = rule
        self._final = final
        self.unstamped: Final = (*self.key, *owns)
        """The columns before the stamp."""
        kinds = [self.table.columns[name].type.python_type for name in self.columns]
        self._texts = tuple(i for i, kind in enumerate(kinds) if kind is str)
        self._reals = tuple(i for i, kind in enumerate(kinds) if kind is float)
        places = (self.partition, self.offset)
        self._integers = tuple(i for i, kind in enumerate(kinds) if kind is int and self.columns[i] not in places)
        indexed = {*self.key, *(column.name for index in self.table.indexes for column in index.columns)}
        self._indexed = tuple(i for i in self._texts if self.columns[i] in indexed)
        self._key_of = itemgetter(*(self.columns.index(name) for name in self.key))
        self._place_of = itemgetter(self.columns.index(self.partition), self.columns.index(self.offset))
        self._final_at = self.columns.index(final[0]) if final else None

    def statement(self, dialect: Dialect) -> str:
        """The SQL text, whose parameters are `columns` in order: on SQLite of one row, on Postgres a list of each."""
        target = table(self.table.name, *(column(name) for name in self.columns))
        rows: Any
        if dialect.name == "postgresql":
            # One statement for all rows; it must not meet a key twice: see `reduced`.
            kinds = [ARRAY(_ELEMENTS[self.table.columns[name].type.python_type]) for name in self.columns]
            lists = [bindparam(name, type_=kind) for name, kind in zip(self.columns, kinds, strict=True)]
            new_rows = func.unnest(*lists).table_valued(*self.columns).render_derived(name="new_rows")
            rows = postgresql.insert(target).from_select(self.columns, select(*new_rows.c))
        else:
            rows = sqlite.insert(target).values({name: bindparam(name) for name in self.columns})
        new = rows.excluded
        # Text for the driver's own `executemany`: SQLAlchemy would go over every parameter of every row.
        compiled = rows.on_conflict_do_update(
            index_elements=self.key, set_={name: new[name] for name in self.owns}, where=self.wins(new, target.columns)
        ).compile(dialect=dialect)
        assert tuple(compiled.positiontup or ()) == self.columns, compiled.positiontup
        return str(compiled)

    def wins(self, new: Columns, old: Columns) -> ColumnElement[bool]:
        """True where a new row's columns replace those of the old one."""
        # By place, not by arrival: the tables come out the same however the reading of partitions interleaved. A row
        # without a place was made by an event that owns other columns.
        incoming = tuple_(new[self.partition], new[self.offset])
        present = tuple_(old[self.partition], old[self.offset])
        higher: ColumnElement[bool] = incoming > present
        condition = or_(old[self.offset].is_(None), incoming < present if self._rule is Rule.FIRST else higher)
        if self._final is None:
            return condition
        name, ended = self._final
        quoted: list[ColumnElement[str]] = [literal_column(f"'{value}'") for value in ended]
        open_yet: ColumnElement[bool] = old[name].is_(None) | old[name].not_in(quoted)
        return condition & open_yet

    def reduced(self, rows: list[Values]) -> list[Values]:
        """The rows with one for each key: that which the statement, run for each in turn, would leave."""
        # Postgres refuses a statement that would change one row twice; SQLite runs it once for each row.
        if len(set(map(self._key_of, rows))) == len(rows):
            return rows
        kept: dict[Value | Values, Values] = {}
        for row in rows:
            key = self._key_of(row)
            other = kept.get(key)
            if other is None or self._replaces(row, other):
                kept[key] = row
        return list(kept.values())

    def _replaces(self, row: Values, other: Values) -> bool:
        if self._final is not None and self._final_at is not None and other[self._final_at] in self._final[1]:
            return False
        if self._rule is Rule.FIRST:
            return bool(self._place_of(row) < self._place_of(other))
        return bool(self._place_of(row) > self._place_of(other))

    def stamp(self, decoded: Decoded) -> tuple[int, ...]:
        """The place of the record, and its time if the table has it: the end of each of its rows."""
        if self.time is None:
            return decoded.partition.number, decoded.offset
        return decoded.partition.number, decoded.offset, decoded.head.time_ns

    def sound(self, rows: list[Values]) -> list[Values]:
        """The rows, with values that one database would keep and the other refuse made equal.

        NaN becomes NULL, as SQLite stores it; NUL characters, which Postgres refuses, become U+FFFD. Raises
        OverflowError for an integer of more than 64 bits, and for text that no index takes.
        """
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))  # a look at a whole column is cheap
        for index in self._integers:
            known = _known(columns[index])
            if min(known, default=0) < _LOWEST or max(known, default=0) > _HIGHEST:
                raise OverflowError(f"{self.table.name}.{self.columns[index]} holds 64 bits, not {max(known)}")
        for index in self._reals:
            if isnan(sum(_known(columns[index]))):  # one sum instead of a test of each; inf - inf is looked at in vain
                rows = [row if row[index] == row[index] else _replaced(row, index, None) for row in rows]
        for index in self._texts:
            texts = _known(columns[index])
            if "\x00" in "".join(texts):
                rows = [_replaced(row, index, _without_nul(row[index])) for row in rows]
            # A character takes four bytes of UTF-8 at most: only longer texts need to be encoded to be measured.
            if index in self._indexed and max(map(len, texts), default=0) > _INDEXED_SIZE_BYTES // 4:
                self._check_indexed(rows, index)
        return rows

    def _check_indexed(self, rows: list[Values], index: int) -> None:
        if any(row[index] is not None and len(str(row[index]).encode()) > _INDEXED_SIZE_BYTES for row in rows):
            raise OverflowError(f"{self.table.name}.{self.columns[index]} is longer than any index takes")


def _known(column: Sequence[Any]) -> Sequence[Any]:
    return [value for value in column if value is not None] if None in column else column


def _replaced(row: Values, index: int, value: Value) -> Values:
    return (*row[:index], value, *row[index + 1 :])


def _without_nul(text: Value) -> Value:
    return text.replace("\x00", "\ufffd") if isinstance(text, str) else text


class Changes:
    """The row changes of some records, in their order, per statement."""

    def __init__(self) -> None:
        self._by_upsert: dict[Upsert, list[Values]] = {}

    def put(self, upsert: Upsert, decoded: Decoded, **row: Value) -> None:
        """Adds one row; the record's place (and time) is filled in."""
        self.of(upsert).append((*[row[name] for name in upsert.unstamped], *upsert.stamp(decoded)))

    def of(self, upsert: Upsert) -> list[Values]:
        """The rows so far, for a handler that adds many: each the upsert's `columns`, so with a stamp at its end."""
        rows = self._by_upsert.get(upsert)
        if rows is None:
            rows = self._by_upsert[upsert] = []
        return rows

    def rows(self) -> dict[Upsert, list[Values]]:
        """The parameters of each statement, in order. Raises OverflowError."""
        return {upsert: upsert.sound(rows) for upsert, rows in self._by_upsert.items() if rows}
