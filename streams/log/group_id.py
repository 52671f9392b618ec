"""The id of a group encodes its stage and sequence, and no other id has the form.

    48 bits ‖ 8 ‖ stage (12) ‖ 2 ‖ 14 bits ‖ sequence (48)

The bits are those of derive(experiment, "group", stage, sequence). Closed groups are therefore kept as intervals, where
a set of ids would grow with the history. (UUID version 8.)
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from rftd.ops.ids import derive

_SEQUENCES: Final = 1 << 48
"""Sequences have to be below this number."""
_STAGES: Final = 1 << 12
"""Stages have to be below this number."""
# In Python `-` binds closer than `<<`, `<<` closer than `&`, and `&` closer than `|`.
_DERIVED_BITS: Final = (1 << 48) - 1 << 80 | (1 << 14) - 1 << 48
"""Bits of the id taken from the derived id."""
_FIXED: Final = 8 << 76 | 2 << 62
"""The version and the variant of a UUID of this form."""


class GroupPlace(NamedTuple):
    """The stage and the sequence of a group in its experiment."""

    stage: int
    """Index of the stage."""
    sequence: int
    """Number of the group within its stage."""


def group_id(experiment: UUID, stage: int, sequence: int) -> UUID:
    """Returns the id of the group with this stage and sequence of the experiment."""
    plain = derive(experiment, "group", stage, sequence)
    # Numbers too large for the digits have the derived id alone.
    if not (0 <= sequence < _SEQUENCES and 0 <= stage < _STAGES):
        return plain
    return UUID(int=plain.int & _DERIVED_BITS | _FIXED | stage << 64 | sequence)


def place_of_group(experiment: UUID | None, id: UUID) -> GroupPlace | None:
    """Decodes stage and sequence from a group's id; None for the id of a retried group, which does not encode them."""
    number = id.int
    group_place = GroupPlace(number >> 64 & _STAGES - 1, number & _SEQUENCES - 1)
    # Encoded again and compared whole: any UUID of version 8 has such digits, and only a group's has the derived bits.
    if experiment is None or number >> 76 & 15 != 8 or group_id(experiment, *group_place) != id:
        return None
    return group_place
