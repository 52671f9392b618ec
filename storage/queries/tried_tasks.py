"""The tasks of a queue that were tried, from the tables."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_TRIED: Final = """SELECT COUNT(*) FROM groups WHERE experiment = :experiment AND stage = :stage
    AND sequence < :added AND closed_offset IS NOT NULL"""


async def tried_tasks(connection: AsyncConnection, experiment: UUID, *, stage: int, added: int) -> int:
    """The number of the `added` tasks whose group has closed; a batch that is filled up tries the first ones again."""
    result = await connection.execute(text(_TRIED), {"experiment": experiment.bytes, "stage": stage, "added": added})
    return int(result.scalar_one())
