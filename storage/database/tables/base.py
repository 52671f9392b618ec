"""The registry of the tables, and the column types that mean the same on SQLite and on Postgres.

Ids are 16 raw bytes, times are integer nanoseconds, counts are 64-bit, text is ordered by its bytes whatever the
database's locale. A column that another event fills in later is nullable. Nothing but portable types is used, so that
canonical digests agree between databases. A changed table needs a migration: `storage/database/migrations`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from sqlalchemy import BigInteger, Column, MetaData, String, Table
from sqlmodel import Field, SQLModel

LOCAL: Final[dict[str, Any]] = {"info": {"local": True}}
"""Marks a column, or a whole table, that tells of this log or this machine alone: it differs where another log holds
the same history, so the digest of an experiment leaves it out."""
TEXT: Final = String().with_variant(String(collation="C"), "postgresql")

# 64 bits for every number: Postgres' INTEGER holds 32, and offsets and times in nanoseconds do not fit.
Key = Annotated[bytes, Field(primary_key=True)]
"""An id that is (part of) the primary key."""
TextKey = Annotated[str, Field(primary_key=True, sa_type=TEXT)]
IntKey = Annotated[int, Field(primary_key=True, sa_type=BigInteger)]
Int = Annotated[int | None, Field(default=None, sa_type=BigInteger)]
Id = Annotated[bytes | None, Field(default=None)]
Text = Annotated[str | None, Field(default=None, sa_type=TEXT)]
LogOffset = Annotated[int | None, Field(default=None, sa_type=BigInteger, sa_column_kwargs=LOCAL)]
"""The offset of a record."""
LogOffsetKey = Annotated[int, Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs=LOCAL)]
LocalPath = Annotated[str | None, Field(default=None, sa_type=TEXT, sa_column_kwargs=LOCAL)]
"""A path of the machine."""
Real = Annotated[float | None, Field(default=None)]
Flag = Annotated[bool | None, Field(default=None)]

CLUSTERED: dict[str, Any] = {"sqlite_with_rowid": False}
"""The rows of a table with random keys lie in their primary key's tree, not beside it."""


class Row(SQLModel):
    """Base of every table of the projections."""

    metadata: ClassVar[MetaData] = MetaData()


def table_of(kind: type[Row]) -> Table:
    """The SQLAlchemy table behind a row class."""
    table: Table = kind.__table__  # type: ignore[attr-defined]
    return table


def is_local(part: Table | Column[Any]) -> bool:
    """True if a table or a column is marked `LOCAL`."""
    return bool(part.info.get("local"))
