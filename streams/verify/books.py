"""Check that every experience is planned, retired or waiting, and the counts of each experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from rftd.streams.log import topics
from rftd.streams.verify.evidence import Evidence
from rftd.streams.verify.facts import (
    CLOSED,
    GONE,
    GROUP,
    GROUPS,
    LEASED,
    MEMBER,
    PLANNED,
    PRESENT,
    PRODUCED,
    RETIRED,
    Facts,
    rows_of,
)

RULE: Final = "books-balance"
"""The rule checked here, as named in findings."""
_RETIREMENTS: Final = np.dtype(
    [("high", ">u8"), ("low", ">u8"), ("offset", "<u8"), ("experiment", "<u4"), ("reason", "<u4")]
)
"""A `RETIREMENT` row of the facts, as a numpy type."""
_BLOCKS_PER_COMPARISON: Final = 64
"""Number of blocks of retirements (two million rows) compared with every experience at once."""


def balance(facts: Facts, evidences: Sequence[Evidence]) -> None:
    """Joins retirements and experiences: reports experiences with a contradictory fate or none, and fills in the counts
    of each experiment.
    """
    for retirements in _retirement_batches(facts):
        _retire(facts, evidences, retirements)
    counts = _Counts(len(evidences))
    unsettled = {evidence.index: _open_groups(facts, evidence) for evidence in evidences}
    for partition, first, page in facts.produced.pages():
        counts.take(rows_of(page, PRODUCED), partition, first, unsettled)
    for evidence in evidences:
        counts.give(evidence)
        if evidence.state == "completed" and evidence.left:
            finding = f"{evidence.left} experiences are neither planned nor retired, among them {evidence.a_left}"
            facts.note(RULE, evidence.id, finding)


def _retirement_batches(facts: Facts) -> Iterator[NDArray[Any]]:
    """Yields the retirements, in the spine's order, in batches of up to `_BLOCKS_PER_COMPARISON` blocks."""
    batch: list[NDArray[Any]] = []
    for block in facts.retirements.blocks():
        batch.append(np.frombuffer(block, dtype=_RETIREMENTS))
        if len(batch) >= _BLOCKS_PER_COMPARISON:
            yield np.concatenate(batch)
            batch = []
    if batch:
        yield np.concatenate(batch)


def _retire(facts: Facts, evidences: Sequence[Evidence], retirements: NDArray[Any]) -> None:
    """Finds each retirement among the experiences, and counts it."""
    # A retirement names an id without a position, so the two are joined: retirements are sorted in memory, experiences
    # pass by page by page. 64 bits of the ids are compared; the flags of a row tell if it may be the one.
    lows = retirements["low"].astype("<u8")
    order = np.argsort(lows, kind="stable")
    lows = lows[order]
    matched = np.zeros(len(lows), dtype=bool)
    for _, _, page in facts.produced.pages():
        rows = rows_of(page, PRODUCED)
        starts = np.searchsorted(lows, rows["id"], side="left")
        hits = np.flatnonzero(
            (starts < len(lows)) & (lows[np.minimum(starts, len(lows) - 1)] == rows["id"]) & (rows["flags"] != 0)
        )
        for hit in hits:
            start = end = int(starts[hit])
            while end < len(lows) and lows[end] == lows[start]:
                end += 1
            for at in range(start, end):
                retirement = retirements[int(order[at])]
                evidence = evidences[int(retirement["experiment"])]
                row = rows[hit]
                if row["experiment"] == evidence.index and row["flags"] & MEMBER:
                    matched[at] = True
                    _retired(facts, evidence, row, retirement)
    for at in np.flatnonzero(~matched):
        retirement = retirements[int(order[at])]
        evidence = evidences[int(retirement["experiment"])]
        finding = f"experience {_id(retirement)} is retired and no member of a closed group"
        facts.note(RULE, evidence.id, finding)


def _retired(facts: Facts, evidence: Evidence, row: Any, retirement: Any) -> None:
    """Counts the retirement of one member of a closed group. Both arguments are rows of arrays; the experience's is
    modified.
    """
    reason = facts.reasons[int(retirement["reason"])]
    flags = int(row["flags"])
    if flags & GONE:
        facts.note(RULE, evidence.id, f"experience {_id(retirement)} is planned and retired as {reason}")
    if flags & RETIRED:
        finding = f"experience {_id(retirement)} is retired more than once, at last as {reason}"
        facts.note(RULE, evidence.id, finding)
        return
    row["flags"] = flags | RETIRED
    evidence.retired[reason] += 1
    page, at = facts.groups.row(facts.space(evidence.index, int(row["stage"])), int(row["sequence"]))
    id, number, epoch, closed, event, retired_at, *tail = GROUP.unpack_from(page, at)
    offset = int(retirement["offset"]) + 1
    retired_at = min(retired_at, offset) if retired_at else offset
    GROUP.pack_into(page, at, id, number, epoch, closed, event, retired_at, *tail)


def _id(retirement: Any) -> UUID:
    """Returns the id of the retired experience."""
    return UUID(int=int(retirement["high"]) << 64 | int(retirement["low"]))


def _open_groups(facts: Facts, evidence: Evidence) -> NDArray[Any]:
    """Returns the ids, mixed to 64 bits, of the groups leased and not closed by the end of the reading, sorted."""
    open_groups = []
    for stage in evidence.group_stages:
        for _, page in facts.groups.pages_of(facts.space(evidence.index, stage)):
            rows = rows_of(page, GROUPS)
            open_groups.append(rows["group"][(rows["flags"] & (LEASED | CLOSED)) == LEASED].copy())
    open_siblings = [
        id for siblings in evidence.siblings.values() for id, sibling in siblings.items() if not sibling.closed
    ]
    open_groups.append(np.array(open_siblings, dtype="<u8"))
    return np.sort(np.concatenate(open_groups))


class _Counts:
    """Counts of experiences by their fate, for each experiment."""

    def __init__(self, experiments: int) -> None:
        """Begins with zero counts for this number of experiments."""
        self._members = np.zeros(experiments, dtype="i8")
        self._planned = np.zeros(experiments, dtype="i8")
        self._retired_after_use = np.zeros(experiments, dtype="i8")
        self._waiting = np.zeros(experiments, dtype="i8")
        self._left = np.zeros(experiments, dtype="i8")
        self._late = np.zeros(experiments, dtype="i8")
        self._a_left: dict[int, str] = {}

    def take(self, rows: NDArray[Any], partition: int, first: int, unsettled: dict[int, NDArray[Any]]) -> None:
        """Counts one page of experiences beginning at offset `first`; `unsettled` are the open groups by experiment
        index.
        """
        flags = rows["flags"]
        present = (flags & PRESENT) != 0
        member = (flags & MEMBER) != 0
        self._add(self._members, rows, member)
        self._add(self._planned, rows, (flags & PLANNED) != 0)
        self._add(self._retired_after_use, rows, member & ((flags & PLANNED) != 0) & ((flags & RETIRED) != 0))
        self._add(self._waiting, rows, member & ((flags & (PLANNED | RETIRED)) == 0))
        # A planned member may be planned again, until its last use: it is neither left over nor settled.
        unsettled_members = member & ((flags & (GONE | RETIRED)) == 0)
        self._add(self._left, rows, unsettled_members)
        for index in np.unique(rows["experiment"][unsettled_members]):
            if int(index) not in self._a_left:
                at = int(np.flatnonzero(unsettled_members & (rows["experiment"] == index))[0])
                self._a_left[int(index)] = f"{topics.EXPERIENCES}/{partition}@{first + at}"
        loose = present & ~member
        for index in np.unique(rows["experiment"][loose]):
            mine = rows["group"][loose & (rows["experiment"] == index)]
            self._late[index] += len(mine) - int(np.isin(mine, unsettled[int(index)]).sum())

    @staticmethod
    def _add(counts: NDArray[Any], rows: NDArray[Any], chosen: NDArray[Any]) -> None:
        """Adds the number of chosen rows of each experiment to `counts`."""
        totals = np.bincount(rows["experiment"][chosen], minlength=len(counts))
        counts += totals

    def give(self, evidence: Evidence) -> None:
        """Copies the counts of one experiment into its evidence."""
        index = evidence.index
        evidence.members = int(self._members[index])
        evidence.planned = int(self._planned[index])
        evidence.retired_after_use = int(self._retired_after_use[index])
        evidence.waiting = int(self._waiting[index])
        evidence.left = int(self._left[index])
        evidence.late = int(self._late[index])
        evidence.a_left = self._a_left.get(index, "")
