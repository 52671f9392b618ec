"""The id of a group says its place: stage and sequence can be read from it, and nobody else's id looks like it.

    48 bits ‖ 8 ‖ stage (12) ‖ 2 ‖ 14 bits ‖ sequence (48)

The bits are those of derive(experiment, "group", stage, sequence). So which groups are closed is kept as intervals,
where a set of ids would grow with the history. (UUID version 8.)
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from rftd.ops.ids import derive

_SEQUENCES: Final = 1 << 48
_STAGES: Final = 1 << 12
# In Python `-` binds closer than `<<`, `<<` closer than `&`, and `&` closer than `|`.
_TAKEN: Final = (1 << 48) - 1 << 80 | (1 << 14) - 1 << 48
"""The bits that are those of the derived id."""
_FIXED: Final = 8 << 76 | 2 << 62
"""The version and the variant of a UUID of this form."""


class GroupPlace(NamedTuple):
    """The place of a group in its experiment."""

    stage: int
    sequence: int


def group_id(experiment: UUID, stage: int, sequence: int) -> UUID:
    """The id of the group at this place of the experiment."""
    plain = derive(experiment, "group", stage, sequence)
    # A place that the digits do not hold has the derived id alone.
    if not (0 <= sequence < _SEQUENCES and 0 <= stage < _STAGES):
        return plain
    return UUID(int=plain.int & _TAKEN | _FIXED | stage << 64 | sequence)


def place_of_group(experiment: UUID | None, id: UUID) -> GroupPlace | None:
    """The place that the id says; None for a retry of a failed group."""
    number = id.int
    place = GroupPlace(number >> 64 & _STAGES - 1, number & _SEQUENCES - 1)
    # Made again and compared whole: any UUID of version 8 has such digits, and only ours has the derived ones.
    if experiment is None or number >> 76 & 15 != 8 or group_id(experiment, *place) != id:
        return None
    return place
