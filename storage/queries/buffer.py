"""`count_buffer`: counts of an experiment's waiting, cooling and open experiences, by the sign of their priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_STATES: Final = ("waiting", "cooling", "open")
"""States of the counted experiences."""
_COUNTS: Final = """SELECT state, CASE WHEN priority > 0 THEN 1 WHEN priority < 0 THEN -1 ELSE 0 END AS band,
    COUNT(*) AS count
FROM experiences WHERE experiment = :experiment AND state IN ('waiting', 'cooling', 'open') AND state <> 'planned'
GROUP BY 1, 2"""
"""SQL of a `PlaceCount` for each state and sign of the priority; `state <> 'planned'`, implied by the list of states,
names the partial index.
"""


class PlaceCount(msgspec.Struct, frozen=True):
    """The number of an experiment's experiences in one state with priorities of one sign."""

    state: str
    """State of the experiences: `waiting` to be planned, `cooling` between uses, `open` until the group is closed."""
    band: int
    """Sign of the experiences' priorities: 1 for positive ones, 0 for zero, -1 for negative ones."""
    count: int
    """Number of experiences in the state with priorities of the sign."""


async def count_buffer(connection: AsyncConnection, experiment: UUID) -> list[PlaceCount]:
    """Returns the number of an experiment's waiting, cooling and open experiences, by state and sign of the priority.

    Every state is present: one without experiences as a count of 0 in band 0. Reads the experiences of these states
    only, by an index.
    """
    rows = await fetch(connection, PlaceCount, _COUNTS, experiment=experiment.bytes)
    return [*rows, *(PlaceCount(state, 0, 0) for state in sorted(set(_STATES) - {row.state for row in rows}))]
