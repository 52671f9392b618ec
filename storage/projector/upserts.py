"""`Upsert`: the columns owned by an event type, and the SQL statement for writing them.

Each event type writes only owned columns, and of two events for equal columns of a row, the lower position in the log
wins (`FIRST`) or the higher (`LAST`). So the tables do not depend on how partitions interleave.
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
"""Content of a column."""
Values = tuple[Value, ...]
"""Row in the order of an upsert's columns."""
Columns = ReadOnlyColumnCollection[str, Any]
"""Columns by name, in SQL conditions."""

_LOWEST: Final = -(1 << 63)
"""Smallest number of a column."""
_HIGHEST: Final = (1 << 63) - 1
"""Largest number of a column."""
_INDEXED_SIZE_BYTES: Final = 2000
"""Maximum text size in a key or an index: Postgres refuses entries of more than 2.7 KB."""
_ELEMENTS: Final[dict[type, TypeEngine[Any]]] = {
    bytes: LargeBinary(),
    str: String(),
    int: BigInteger(),
    float: Double(),
    bool: Boolean(),
}
"""Column type on Postgres of each Python type."""


class Rule(Enum):
    """The rule for two events owning a column: the first or the last wins."""

    FIRST = "first"
    """The first event wins."""
    LAST = "last"
    """The last event wins."""


class Upsert:
    """The columns of `kind` owned by an event type, besides the row's key.

    `prefix` is the prefix of the columns with the winner's position in the log: PREFIX_partition, PREFIX_offset and, if
    present in the table, PREFIX_ns. All are filled in from the record. `final` names an owned column with values that
    are never replaced.
    """

    def __init__(
        self,
        kind: type[Row],
        *,
        prefix: str,
        owns: Sequence[str] = (),
        rule: Rule = Rule.FIRST,
        final: tuple[str, Sequence[str]] | None = None,
    ) -> None:
        """`prefix` begins the names of the columns for partition, offset and time of the owning record; `owns` are the
        other columns; `final` is a column with the contents after which no later event wins.
        """
        self.table = table_of(kind)
        """The written table."""
        self.key: Final = tuple(column.name for column in self.table.primary_key.columns)
        """Columns of the primary key."""
        self.partition = f"{prefix}_partition"
        """Column of the owning record's partition."""
        self.offset = f"{prefix}_offset"
        """Column of the owning record's offset."""
        time = f"{prefix}_ns"
        """Name of the column for the time of the owning record; kept in `self.time` only if the table has this column.
        """
        self.time = time if time in self.table.columns else None
        stamps = (self.partition, self.offset, *((time,) if self.time else ()))
        self.owns: Final = (*owns, *stamps)
        """Columns owned by the event type, stamps included."""
        self.columns: Final = (*self.key, *self.owns)
        """Key and owned columns, in the order of parameters."""
        assert all(name in self.table.columns for name in self.columns), (self.table.name, self.owns)
        self._rule = rule
        self._final = final
        self.unstamped: Final = (*self.key, *owns)
        """The columns before the stamp."""
        kinds: list[type] = [self.table.columns[name].type.python_type for name in self.columns]
        self.kinds: Final = tuple(kinds)
        """The Python types of the columns."""
        self._texts = tuple(i for i, kind in enumerate(kinds) if kind is str)
        """Indices of text columns."""
        self._reals = tuple(i for i, kind in enumerate(kinds) if kind is float)
        """Indices of float columns."""
        places = (self.partition, self.offset)
        self._integers = tuple(i for i, kind in enumerate(kinds) if kind is int and self.columns[i] not in places)
        """Indices of integer columns, without partition and offset."""
        indexed = {*self.key, *(column.name for index in self.table.indexes for column in index.columns)}
        self._indexed = tuple(i for i in self._texts if self.columns[i] in indexed)
        """Indices of text columns in a key or an index."""
        self._key_of = itemgetter(*(self.columns.index(name) for name in self.key))
        """Getter of a row's key: a tuple of values, or a single value for a key of one column."""
        self._place_of = itemgetter(self.columns.index(self.partition), self.columns.index(self.offset))
        """Getter of a row's place in the log, as a tuple of partition and offset."""
        self._final_at = self.columns.index(final[0]) if final else None
        """Index of the column with final contents; None without one."""

    def statement(self, dialect: Dialect) -> str:
        """Returns the SQL text with the parameters `columns` in order: a row on SQLite, columns on Postgres."""
        target = table(self.table.name, *(column(name) for name in self.columns))
        rows: Any
        if dialect.name == "postgresql":
            # A single statement for all rows, without repeated keys: see `reduced`.
            kinds = [ARRAY(_ELEMENTS[self.table.columns[name].type.python_type]) for name in self.columns]
            lists = [bindparam(name, type_=kind) for name, kind in zip(self.columns, kinds, strict=True)]
            new_rows = func.unnest(*lists).table_valued(*self.columns).render_derived(name="new_rows")
            rows = postgresql.insert(target).from_select(self.columns, select(*new_rows.c))
        else:
            rows = sqlite.insert(target).values({name: bindparam(name) for name in self.columns})
        new = rows.excluded
        # Text for the driver's own `executemany`: SQLAlchemy would process every parameter of every row.
        compiled = rows.on_conflict_do_update(
            index_elements=self.key, set_={name: new[name] for name in self.owns}, where=self.wins(new, target.columns)
        ).compile(dialect=dialect)
        assert tuple(compiled.positiontup or ()) == self.columns, compiled.positiontup
        return str(compiled)

    def wins(self, new: Columns, old: Columns) -> ColumnElement[bool]:
        """Returns the SQL condition for a new row's columns to replace the old row's."""
        # By position, not by arrival: the tables are the same however the reading of partitions interleaved. A row
        # without a position comes from an event owning other columns.
        incoming = tuple_(new[self.partition], new[self.offset])
        present = tuple_(old[self.partition], old[self.offset])
        higher: ColumnElement[bool] = incoming > present
        condition = or_(old[self.offset].is_(None), incoming < present if self._rule is Rule.FIRST else higher)
        if self._final is None:
            return condition
        name, ended = self._final
        quoted: list[ColumnElement[str]] = [literal_column(f"'{final_text}'") for final_text in ended]
        open_yet: ColumnElement[bool] = old[name].is_(None) | old[name].not_in(quoted)
        return condition & open_yet

    def reduced(self, rows: list[Values]) -> list[Values]:
        """Returns a row for each key: the remaining row if the statement ran for each row in turn."""
        # Postgres refuses a statement changing a row twice; SQLite runs a statement per row.
        if len(set(map(self._key_of, rows))) == len(rows):
            return rows
        winners: dict[Value | Values, Values] = {}
        for row in rows:
            key = self._key_of(row)
            winner = winners.get(key)
            if winner is None or self._replaces(row, winner):
                winners[key] = row
        return list(winners.values())

    def _replaces(self, row: Values, winner: Values) -> bool:
        """True if a row wins over the winner so far."""
        if self._final is not None and self._final_at is not None and winner[self._final_at] in self._final[1]:
            return False
        if self._rule is Rule.FIRST:
            return bool(self._place_of(row) < self._place_of(winner))
        return bool(self._place_of(row) > self._place_of(winner))

    def stamp(self, decoded: Decoded) -> tuple[int, ...]:
        """Returns the record's position, and the time if present in the table: the last columns of each row."""
        if self.time is None:
            return decoded.partition.number, decoded.offset
        return decoded.partition.number, decoded.offset, decoded.head.time_ns

    def sound(self, rows: list[Values]) -> list[Values]:
        """Returns the rows with normalised values, accepted equally by both databases.

        NaN becomes NULL, as SQLite stores it; NUL characters, which Postgres refuses, become U+FFFD. Raises
        OverflowError for an integer of more than 64 bits, and for text too long for an index.
        """
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))  # checking a whole column at once is cheap
        for index in self._integers:
            integers = _without_none(columns[index])
            if min(integers, default=0) < _LOWEST or max(integers, default=0) > _HIGHEST:
                raise OverflowError(f"{self.table.name}.{self.columns[index]} holds 64 bits, not {max(integers)}")
        for index in self._reals:
            if isnan(
                sum(_without_none(columns[index]))
            ):  # one sum instead of a test per value; inf - inf only causes a needless check
                rows = [row if row[index] == row[index] else _with_replacement(row, index, None) for row in rows]
        for index in self._texts:
            texts = _without_none(columns[index])
            if "\x00" in "".join(texts):
                rows = [_with_replacement(row, index, _without_nul(row[index])) for row in rows]
            # A character takes four bytes of UTF-8 at most: only longer texts must be encoded to be measured.
            if index in self._indexed and max(map(len, texts), default=0) > _INDEXED_SIZE_BYTES // 4:
                self._check_indexed(rows, index)
        return rows

    def _check_indexed(self, rows: list[Values], index: int) -> None:
        """Raises OverflowError for a text too long for an index."""
        if any(row[index] is not None and len(str(row[index]).encode()) > _INDEXED_SIZE_BYTES for row in rows):
            raise OverflowError(f"{self.table.name}.{self.columns[index]} is longer than any index takes")


def _without_none(column: Sequence[Any]) -> Sequence[Any]:
    """Returns the cells without None."""
    return [cell for cell in column if cell is not None] if None in column else column


def _with_replacement(row: Values, index: int, replacement: Value) -> Values:
    """Returns a row with one cell replaced."""
    return (*row[:index], replacement, *row[index + 1 :])


def _without_nul(text: Value) -> Value:
    """Returns a text with NUL characters replaced, which Postgres refuses."""
    return text.replace("\x00", "\ufffd") if isinstance(text, str) else text


class Changes:
    """The row changes of some records, in order, per statement."""

    def __init__(self) -> None:
        self._by_upsert: dict[Upsert, list[Values]] = {}
        """Rows by statement, in the order of first use."""

    def put(self, upsert: Upsert, decoded: Decoded, **row: Value) -> None:
        """Adds one row; the record's position (and time) is filled in."""
        self.of(upsert).append((*[row[name] for name in upsert.unstamped], *upsert.stamp(decoded)))

    def of(self, upsert: Upsert) -> list[Values]:
        """Returns the mutable list of rows of an upsert, for handlers that add many: tuples of `columns`, with the
        stamp at the end.
        """
        rows = self._by_upsert.get(upsert)
        if rows is None:
            rows = self._by_upsert[upsert] = []
        return rows

    def rows(self) -> dict[Upsert, list[Values]]:
        """Returns the parameters of each statement, in order. Raises OverflowError."""
        return {upsert: upsert.sound(rows) for upsert, rows in self._by_upsert.items() if rows}
