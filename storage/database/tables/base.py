"""The registry of the tables, and column types with equal semantics on SQLite and Postgres.

Ids are 16 raw bytes, times are integer nanoseconds, counts are 64-bit, text is ordered by bytes in any locale of the
database. A column filled in later by another event is nullable. Only portable types are used, so that canonical digests
agree between databases. A changed table needs a migration: `storage/database/migrations`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from sqlalchemy import BigInteger, Column, MetaData, String, Table, text
from sqlmodel import Field, SQLModel

LOCAL: Final[dict[str, Any]] = {"info": {"local": True}}
"""Arguments marking a column, or a whole table, as specific to this log or this machine.

Another log with the same history differs there, so the digest of an experiment leaves marked columns out.
"""
TEXT: Final = String().with_variant(String(collation="C"), "postgresql")
"""Type of text ordered by bytes on both databases."""

# 64 bits for every number: Postgres' INTEGER has 32, too few for offsets and times in nanoseconds.
Key = Annotated[bytes, Field(primary_key=True)]
"""Column of an id in the primary key."""
TextKey = Annotated[str, Field(primary_key=True, sa_type=TEXT)]
"""Column of text in the primary key."""
IntKey = Annotated[int, Field(primary_key=True, sa_type=BigInteger)]
"""Column of 64-bit numbers in the primary key."""
Int = Annotated[int | None, Field(default=None, sa_type=BigInteger)]
"""Nullable column of 64-bit numbers."""
Id = Annotated[bytes | None, Field(default=None)]
"""Nullable column of ids."""
Text = Annotated[str | None, Field(default=None, sa_type=TEXT)]
"""Nullable column of text ordered by bytes."""
LogOffset = Annotated[int | None, Field(default=None, sa_type=BigInteger, sa_column_kwargs=LOCAL)]
"""Nullable column of a record's offset in this log; marked `LOCAL`."""
LogOffsetKey = Annotated[int, Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs=LOCAL)]
"""Column of a record's offset in this log, in the primary key; marked `LOCAL`."""
LocalPath = Annotated[str | None, Field(default=None, sa_type=TEXT, sa_column_kwargs=LOCAL)]
"""Nullable column of a path on this machine; marked `LOCAL`."""
Real = Annotated[float | None, Field(default=None)]
"""Nullable column of floating-point numbers."""
Flag = Annotated[bool | None, Field(default=None)]
"""Nullable column of booleans."""

CLUSTERED: dict[str, Any] = {"sqlite_with_rowid": False}
"""Table option for random primary keys on SQLite: rows are stored in the key's tree, without a second tree of row ids.
"""


def where(condition: str) -> dict[str, Any]:
    """Returns the options of a partial index for both databases."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class Row(SQLModel):
    """Base class of all tables of the projections."""

    metadata: ClassVar[MetaData] = MetaData()
    """SQLAlchemy's catalogue of all these tables."""


def table_of(kind: type[Row]) -> Table:
    """Returns the SQLAlchemy table behind a row class, for queries without ORM objects."""
    table: Table = kind.__table__  # type: ignore[attr-defined]
    return table


def is_local(marked: Table | Column[Any]) -> bool:
    """True if a table or a column is marked `LOCAL`."""
    return bool(marked.info.get("local"))
