"""`environment_rows`: every row of an environment's dataset, from the environment's own server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from rftd.ops.errors import DataError
from rftd.workers.workflows.environments.server import EnvironmentServer, ServedProgram

MOST_ROWS: Final = 1_000_000
"""Maximum rows of an environment: the dataset of a generator has no end."""
_ROWS_PER_CALL: Final = 32
"""Number of rows requested in one call of the server."""


async def environment_rows(program: ServedProgram, limit_rows: int | None = None) -> AsyncIterator[dict[str, Any]]:
    """Yields the rows in order, at most `limit_rows`. Raises RolloutError, and DataError for rows without end."""
    server = EnvironmentServer(program)
    try:
        async with server.session() as session:
            first = 0
            while page := await session.tasks(first, _ROWS_PER_CALL):
                for row in page:
                    if first == limit_rows:
                        return
                    if first == MOST_ROWS:
                        problem = f"environment {program.address.name!r} has more than {MOST_ROWS} rows"
                        raise DataError(problem, fix="set limit_rows, or size in its address")
                    yield row
                    first += 1
    finally:
        server.stop()
