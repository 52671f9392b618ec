"""Rollouts as shown on the page: groups with a coloured cell for each member, and one dataset row through versions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from rftd.storage.queries.experiences import ExperienceRow
from rftd.storage.queries.rollout_rows import FailedRollout

Colour = Literal["reward", "length", "staleness"]
"""The figure behind the colour of a cell."""
_LEVELS: Final = (0.1, 0.4, 0.6, 0.9)
"""Lower bounds of the levels 1 to 4 on a scale from 0, low, to 1, high."""


class RolloutCell(NamedTuple):
    """One rollout as a coloured cell."""

    row: ExperienceRow
    """The rollout's experience."""
    level: int | None
    """Colour from 0, low, to 4, high; None without a figure."""
    text: str
    """The figure in words."""


class CellGroup(NamedTuple):
    """The rollouts of one group as coloured cells."""

    id: str
    """Id of the group."""
    cells: list[RolloutCell]
    """Cells of the group's rollouts."""
    reward_mean: float | None
    """Mean reward of the cells; None without a reward."""

    @property
    def is_flat(self) -> bool:
        """True for several equal rewards: no gradient."""
        return len(self.cells) > 1 and len({cell.row.reward for cell in self.cells}) == 1


class VersionLine(NamedTuple):
    """The answers to one dataset row by one group, with the oldest weight version behind a token."""

    version: int
    """The oldest weight version behind a token of the answers."""
    group: CellGroup
    """Cells of the answers."""
    is_shown: bool
    """True for the group of the rollout on the page."""


class Neighbours(NamedTuple):
    """Rollouts reached by a key; None for no such rollout."""

    next: ExperienceRow | None
    """Next rollout of the group; after the last one, the first rollout of the next group."""
    previous: ExperienceRow | None
    """Previous rollout of the group; before the first one, the first rollout of the previous group."""
    best: ExperienceRow | None
    """Rollout of the group with the highest reward."""
    worst: ExperienceRow | None
    """Rollout of the group with the lowest reward."""
    next_group: ExperienceRow | None
    """First rollout of the next group."""
    previous_group: ExperienceRow | None
    """First rollout of the previous group."""
    newer: ExperienceRow | None
    """First rollout of the group at the next newer version, for the dataset row."""
    older: ExperienceRow | None
    """First rollout of the group at the next older version, for the dataset row."""


def groups_of(rows: Sequence[ExperienceRow], colour: Colour) -> list[CellGroup]:
    """Returns the rollouts in groups, groups in the order of the first member, members by rollout."""
    lengths = [row.response_tokens for row in rows]
    lengths_range = (min(lengths, default=0), max(lengths, default=0))
    stalest = max((row.staleness_versions or 0 for row in rows), default=0)
    members: dict[str, list[RolloutCell]] = {}
    for row in rows:
        share, text = _figure(row, colour, lengths_range, stalest)
        members.setdefault(row.group, []).append(RolloutCell(row, _level(share), text))
    return [
        CellGroup(id, sorted(cells, key=lambda cell: cell.row.rollout), _mean([cell.row.reward for cell in cells]))
        for id, cells in members.items()
    ]


def _figure(
    row: ExperienceRow, colour: Colour, lengths_range: tuple[int, int], stalest: int
) -> tuple[float | None, str]:
    """Returns the figure behind a rollout's colour and the figure in words; shares run from 0, worst, to 1, best."""
    if colour == "length":
        shortest, longest = lengths_range
        share = (longest - row.response_tokens) / (longest - shortest) if longest > shortest else 0.5
        return share, f"{row.response_tokens} tokens"
    if colour == "staleness":
        stale = row.staleness_versions
        return (None, "not planned") if stale is None else (1 - stale / max(1, stalest), f"{stale} versions old")
    return row.reward, "no reward" if row.reward is None else f"reward {row.reward:.3g}"


def _level(share: float | None) -> int | None:
    """Returns the colour of a share, from 0 for the lowest; None without a finite share."""
    return None if share is None or not math.isfinite(share) else sum(share >= bound for bound in _LEVELS)


def _mean(rewards: Sequence[float | None]) -> float | None:
    """Returns the mean of the known rewards; None without any."""
    numbers = [reward for reward in rewards if reward is not None]
    return sum(numbers) / len(numbers) if numbers else None


def versions_of(rows: Sequence[ExperienceRow], shown: str, colour: Colour) -> list[VersionLine]:
    """Returns the groups of one dataset row by oldest weight version; `shown` is the group on the page."""
    lines = [
        VersionLine(min(cell.row.oldest_version for cell in group.cells), group, group.id == shown)
        for group in groups_of(rows, colour)
    ]
    return sorted(lines, key=lambda line: (line.version, line.group.cells[0].row.produced_ns))


def neighbours_of(
    shown: ExperienceRow, members: Sequence[ExperienceRow], groups: Sequence[CellGroup], lines: Sequence[VersionLine]
) -> Neighbours:
    """Returns the rollouts beside the shown one: in its group, in the list of groups, and at other versions."""
    ids = [member.id for member in members]
    number = ids.index(shown.id) if shown.id in ids else 0
    ordered = sorted((member for member in members if member.reward is not None), key=_reward)
    before, after = _beside([group.id for group in groups], shown.group)
    older, newer = _beside([line.group.id for line in lines], shown.group)
    return Neighbours(
        next=members[number + 1] if number + 1 < len(members) else _first(groups, after),
        previous=members[number - 1] if number > 0 else _first(groups, before),
        best=ordered[-1] if ordered else None,
        worst=ordered[0] if ordered else None,
        next_group=_first(groups, after),
        previous_group=_first(groups, before),
        newer=_first([line.group for line in lines], newer),
        older=_first([line.group for line in lines], older),
    )


def _reward(row: ExperienceRow) -> float:
    """Returns the reward of a rollout, 0 without one."""
    return row.reward or 0.0


def _beside(ids: Sequence[str], id: str) -> tuple[int | None, int | None]:
    """Returns the positions before and behind an id."""
    if id not in ids:
        return None, 0 if ids else None
    position = ids.index(id)
    return (position - 1 if position else None), (position + 1 if position + 1 < len(ids) else None)


def _first(groups: Sequence[CellGroup], position: int | None) -> ExperienceRow | None:
    """Returns the first rollout of the group at a position; None without a position."""
    return None if position is None else groups[position].cells[0].row


def failed_words(failed: Sequence[FailedRollout]) -> Mapping[int, str]:
    """Returns the reason of each failed rollout, by its number."""
    return {rollout.rollout: f"{rollout.code or 'no record'}: {rollout.reason}".strip(": ") for rollout in failed}
