# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`BufferCounter`: the experiences of one experiment that wait, rest or are open; the settled ones are not read again.

What an experience's state will never leave again is settled: retired, late, or planned for the last time in a batch
that was trained. Those older than the oldest of the others are only counted, to see that nothing has come among them.
A long history is read in portions: a count that was cut off goes on where it was.
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

_PLACES: Final = ("waiting", "cooling", "open")
_BAND: Final = "CASE WHEN e.priority > 0 THEN 1 WHEN e.priority < 0 THEN -1 ELSE 0 END"
_TRAINED: Final = f"""EXISTS (SELECT 1 FROM batch_items i WHERE i.experience = e.id AND EXISTS (
    SELECT 1 FROM batches b JOIN steps u ON u.experiment = b.experiment AND u.step = b.step AND u.batch = b.id
    WHERE b.id = i.batch AND b.planned_offset = i.planned_offset AND b.experiment = e.experiment
        AND b.max_uses > 0 AND i.use >= b.max_uses AND u.completed_offset IS NOT NULL AND NOT {ABANDONED}))"""
"""True of `experiences e` if a step was made of its last use: the batch cannot be abandoned any more."""
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
"""Experiences of one query that looks for settled ones: a tenth of a second."""


class PlaceCount(msgspec.Struct, frozen=True):
    """The experiences of one place whose priority tags have one sign."""

    state: str
    """`waiting` to be planned, `cooling` between two uses, `open` until its group is closed."""
    band: int
    """1 for tags above zero, 0 for those of zero, -1 for those below."""
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
    """The counter of one experiment; it remembers which part of the history is settled."""

    def __init__(self, experiment: UUID, *, portion: int = PORTION) -> None:
        """`portion` is how many experiences it looks at in one query as long as all before them are settled."""
        self._experiment = experiment
        self._portion = portion
        self._since_ns = 0
        """All experiences that were produced before it are settled."""
        self._settled = 0
        """The number of those."""

    async def count(self, connection: AsyncConnection) -> list[PlaceCount]:
        """The number of experiences that wait, that rest, and whose groups are not closed, as the books have them.

        Each place is there, with those of tag zero if it is empty. The first time it looks at every experience: about a
        second for a hundred thousand of them. If it is cancelled meanwhile, the next call looks at the rest.
        """
        # Times are those of the machines that explore: one whose clock is behind, or whose record came late, is older
        # than others that were counted before.
        if self._since_ns and (await self._number(connection, 0, self._since_ns)).count != self._settled:
            self._since_ns = 0
            self._settled = 0
        while (until_ns := await self._end_of_portion(connection)) is not None:
            before_ns = self._since_ns
            rows = await self._look(connection, until_ns)
            if self._since_ns == before_ns or any(row.unsettled_ns is not None for row in rows):
                break
        rows = await self._look(connection, _ENDLESS_NS)
        found = [PlaceCount(row.state, row.band, row.count) for row in rows if row.state in _PLACES]
        return [*found, *(PlaceCount(place, 0, 0) for place in sorted(set(_PLACES) - {row.state for row in rows}))]

    async def _end_of_portion(self, connection: AsyncConnection) -> int | None:
        """The time of the first experience that is left out of the next portion; None if that holds all."""
        found = await fetch_one(
            connection,
            _Time,
            _END_OF_PORTION,
            experiment=self._experiment.bytes,
            since=self._since_ns,
            portion=self._portion,
        )
        return None if found is None else found.produced_ns

    async def _look(self, connection: AsyncConnection, until_ns: int) -> list[_StateCount]:
        """The states of those that were not settled and were produced before `until_ns`; passes over the settled."""
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
        """The experiences that were produced within this time."""
        found = await fetch(
            connection, _Produced, _NUMBER, experiment=self._experiment.bytes, since=since_ns, until=until_ns
        )
        return found[0]
