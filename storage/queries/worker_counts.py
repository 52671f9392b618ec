"""Workers of an experiment over time: starts and ends of each role, and how long weights took to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from rftd.storage.queries.rows import fetch_raw

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class Presence(NamedTuple):
    """Sorted times of the starts and of the ends of a role's workers, in nanoseconds."""

    starts: NDArray[np.int64]
    """Start times of the role's workers, ascending."""
    ends: NDArray[np.int64]
    """End times of the role's ended workers, ascending."""

    def living(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the number of living workers at each time."""
        started = np.searchsorted(self.starts, times_ns, side="right")
        return (started - np.searchsorted(self.ends, times_ns, side="right")).astype(np.float64)


async def presence_of(connection: AsyncConnection, experiment: UUID) -> dict[str, Presence]:
    """Returns the starts and ends of the experiment's workers by role."""
    _, rows = await fetch_raw(
        connection,
        """SELECT role, started_ns, COALESCE(stopped_ns, lost_ns) FROM workers
        WHERE experiment = :experiment AND started_offset IS NOT NULL AND role IS NOT NULL""",
        experiment=experiment.bytes,
    )
    return {
        role: Presence(
            np.sort(np.array([start for name, start, _ in rows if name == role], np.int64)),
            np.sort(np.array([end for name, _, end in rows if name == role and end is not None], np.int64)),
        )
        for role in sorted({row[0] for row in rows})
    }


async def load_times(connection: AsyncConnection, experiment: UUID) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns the weight versions loaded by explorers, and the mean seconds of each version's loads."""
    _, rows = await fetch_raw(
        connection,
        """SELECT version, AVG(duration_s) FROM activations WHERE experiment = :experiment AND duration_s IS NOT NULL
        GROUP BY version ORDER BY version""",
        experiment=experiment.bytes,
    )
    return np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows], np.float64)
