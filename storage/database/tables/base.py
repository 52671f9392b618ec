"""The registry of the tables, and column types with equal semantics on SQLite and Postgres.

Ids are 16 raw bytes, times are integer nanoseconds, counts are 64-bit, text is ordered by bytes in any locale of the
database. A column filled in later by another event is nullable. Only portable types are used, so that canonical digests
agree between databases. A changed table needs a migration: `storage/database/migrations`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from sqlalchemy import BigInteger, Column, MetaData, String, Table
from sqlmodel import Field, SQLModel

LOCAL: Final[dict[str, Any]] = {"info": {"local": True}}
"""Marks a column, or a whole table, as specific to this log or this machine; another log with the same history differs
there, so the digest of an experiment leaves it out.
"""
TEXT: Final = String().with_variant(String(collation="C"), "postgresql")

# 64 bits for every number: Postgres' INTEGER has 32, too few for offsets and times in nanoseconds.
Key = Annotated[bytes, Field(primary_key=True)]
"""An id that is (part of) the primary key."""
TextKey = Annotated[str, Field(primary_key=True, sa_type=TEXT)]
IntKey = Annotated[int, Field(primary_key=True, sa_type=BigInteger)]
Int = Annotated[int | None, Field(default=None, sa_type=BigInteger)]
Id = Annotated[bytes | None, Field(default=None)]
Text = Annotated[str | None, Field(default=None, sa_type=TEXT)]
LogOffset = Annotated[int | None, Field(default=None, sa_type=BigInteger, sa_column_kwargs=LOCAL)]
"""The offset of a record in this log."""
LogOffsetKey = Annotated[int, Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs=LOCAL)]
LocalPath = Annotated[str | None, Field(default=None, sa_type=TEXT, sa_column_kwargs=LOCAL)]
"""A path on this machine."""
Real = Annotated[float | None, Field(default=None)]
Flag = Annotated[bool | None, Field(default=None)]

CLUSTERED: dict[str, Any] = {"sqlite_with_rowid": False}
"""Table option for random keys: rows lie in the primary key's tree, not beside it."""


class Row(SQLModel):
    """Base class of every table of the projections, with the common SQLAlchemy metadata."""

    metadata: ClassVar[MetaData] = MetaData()


def table_of(kind: type[Row]) -> Table:
    """Returns the SQLAlchemy table behind a row class, for queries without ORM objects."""
    table: Table = kind.__table__  # type: ignore[attr-defined]
    return table


def is_local(marked: Table | Column[Any]) -> bool:
    """True if a table or a column is marked `LOCAL`."""
    return bool(marked.info.get("local"))
