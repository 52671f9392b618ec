# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`BufferCounter`: counts of an experiment's waiting, cooling and open experiences, without reading settled experiences
again.

An experience is settled in a final state: retired, late, or planned for the last time in a trained batch. Experiences
older than the oldest unsettled one are only counted, to detect additions. A long history is read in portions: an
interrupted count continues later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.books import GROUP, HELD, PRODUCED, RETIRED, STATE
from rftd.storage.queries.counting import ABANDONED
from rftd.storage.queries.rows import fetch, fetch_one

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_STATES: Final = ("waiting", "cooling", "open")
_BAND: Final = "CASE WHEN e.priority > 0 THEN 1 WHEN e.priority < 0 THEN -1 ELSE 0 END"
_TRAINED: Final = f"""EXISTS (SELECT 1 FROM batch_items i WHERE i.experience = e.id AND EXISTS (
    SELECT 1 FROM batches b JOIN steps u ON u.experiment = b.experiment AND u.step = b.step AND u.batch = b.id
    WHERE b.id = i.batch AND b.planned_offset = i.planned_offset AND b.experiment = e.experiment
        AND b.max_uses > 0 AND i.use >= b.max_uses AND u.completed_offset IS NOT NULL AND NOT {ABANDONED}))"""
"""SQL condition on `experiences e`: a step was trained on its last use, so the batch can no longer be abandoned."""
_COUNTS: Final = f"""SELECT state, band, COUNT(*) AS count, MIN(unsettled_ns) AS unsettled_ns FROM (
    SELECT state, band, CASE WHEN state IN ('retired', 'late') OR trained = 1 THEN NULL ELSE produced_ns END
        AS unsettled_ns
    FROM (SELECT {STATE} AS state, {_BAND} AS band, e.produced_ns AS produced_ns,
            CASE WHEN {_TRAINED} THEN 1 ELSE 0 END AS trained
        FROM experiences e {GROUP} {RETIRED}
        WHERE e.experiment = :experiment AND e.produced_ns >= :since AND e.produced_ns < :until AND {PRODUCED}) r) s
GROUP BY state, band"""
_NUMBER: Final = f"""SELECT COUNT(*) AS count, MAX(e.produced_ns) AS newest_ns FROM experiences e
WHERE e.experiment = :experiment AND e.produced_ns >= :since AND e.produced_ns < :until AND {HELD}"""
_END_OF_PORTION: Final = """SELECT produced_ns FROM experiences WHERE experiment = :experiment AND produced_ns >= :since
ORDER BY produced_ns LIMIT 1 OFFSET :portion"""
_ENDLESS_NS: Final = 2**63 - 1
PORTION: Final = 16_384
"""Experiences read by one query in search of settled ones: a tenth of a second."""


class PlaceCount(msgspec.Struct, frozen=True):
    """The number of experiences in a state, with priority tags of equal sign."""

    state: str
    """`waiting` to be planned, `cooling` between two uses, `open` until its group is closed."""
    band: int
    """1 for positive tags, 0 for zero, -1 for negative ones."""
    count: int


class _StateCount(msgspec.Struct, frozen=True):
    state: str
    band: int
    count: int
    unsettled_ns: int | None


class _Produced(msgspec.Struct, frozen=True):
    count: int
    newest_ns: int | None


class _Time(msgspec.Struct, frozen=True):
    produced_ns: int


class BufferCounter:
    """Counts an experiment's experiences, remembering the settled part of the history."""

    def __init__(self, experiment: UUID, *, portion: int = PORTION) -> None:
        """`portion` is the number of experiences per query as long as all earlier experiences are settled."""
        self._experiment = experiment
        self._portion = portion
        self._since_ns = 0
        """All experiences produced before this time are settled."""
        self._settled = 0
        """The number of settled experiences."""

    async def count(self, connection: AsyncConnection) -> list[PlaceCount]:
        """Returns the number of waiting, cooling and open experiences, as in the books.

        Every state is present, with tag zero if empty. The first call reads every experience: about a second per
        hundred thousand. After a cancelled call, the next call reads the remaining experiences.
        """
        # Times come from the explorers' machines: with a slow clock, or a late record, an experience is older than
        # others counted before.
        if self._since_ns and (await self._number(connection, 0, self._since_ns)).count != self._settled:
            self._since_ns = 0
            self._settled = 0
        while (until_ns := await self._end_of_portion(connection)) is not None:
            before_ns = self._since_ns
            rows = await self._look(connection, until_ns)
            if self._since_ns == before_ns or any(row.unsettled_ns is not None for row in rows):
                break
        rows = await self._look(connection, _ENDLESS_NS)
        counts = [PlaceCount(row.state, row.band, row.count) for row in rows if row.state in _STATES]
        return [*counts, *(PlaceCount(state, 0, 0) for state in sorted(set(_STATES) - {row.state for row in rows}))]

    async def _end_of_portion(self, connection: AsyncConnection) -> int | None:
        """Returns the time of the first experience beyond the next portion; None if the portion covers all."""
        beyond = await fetch_one(
            connection,
            _Time,
            _END_OF_PORTION,
            experiment=self._experiment.bytes,
            since=self._since_ns,
            portion=self._portion,
        )
        return None if beyond is None else beyond.produced_ns

    async def _look(self, connection: AsyncConnection, until_ns: int) -> list[_StateCount]:
        """Returns counts of unsettled experiences produced before `until_ns`, and advances past newly settled
        experiences.
        """
        since_ns = self._since_ns
        rows = await fetch(
            connection, _StateCount, _COUNTS, experiment=self._experiment.bytes, since=since_ns, until=until_ns
        )
        unsettled_ns = min((row.unsettled_ns for row in rows if row.unsettled_ns is not None), default=until_ns)
        newly = await self._number(connection, since_ns, unsettled_ns)
        if newly.newest_ns is not None:
            self._settled += newly.count
            self._since_ns = newly.newest_ns + 1
        return rows

    async def _number(self, connection: AsyncConnection, since_ns: int, until_ns: int) -> _Produced:
        """Returns the number of experiences produced within the time span."""
        rows = await fetch(
            connection, _Produced, _NUMBER, experiment=self._experiment.bytes, since=since_ns, until=until_ns
        )
        return rows[0]
