"""`visit`: runs a function on a SQLite connection in one visit to the connection's thread.

SQLAlchemy needs four visits for a query, and each visit wakes the event loop: more than most queries cost.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy.ext.asyncio import AsyncConnection

T = TypeVar("T")
"""Type of the function's outcome."""


async def visit(connection: AsyncConnection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Returns the outcome of `work`, run within the connection's transaction. Raises SQLAlchemy's DBAPIError for SQLite
    errors.

    A cancelled visit still runs to the end in the thread, so the connection is invalidated.
    """
    import sqlite3  # late, like the next import: the command line reads the same rows without either

    from sqlalchemy.exc import DBAPIError

    if not connection.in_transaction():
        await connection.begin()
    driver: Any = (await connection.get_raw_connection()).driver_connection
    try:
        # As SQLAlchemy's own driver does: aiosqlite has no public names for these.
        return await driver._execute(work, driver._conn)  # type: ignore[no-any-return]
    except sqlite3.Error as error:
        raise DBAPIError.instance(None, None, error, sqlite3.Error, hide_parameters=True) from error
    except CancelledError:
        await connection.invalidate()
        raise
