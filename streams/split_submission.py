"""Halves: an experiment whose explorers and whose trainer come from two submissions of the same file."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.streams.spec import ExperimentSpec, StageSpec

EXPLORE: Final = "explore"
TRAIN: Final = "train"
BOTH: Final = frozenset((EXPLORE, TRAIN))
HALF_OF: Final = {"explorer": EXPLORE, "trainer": TRAIN}
"""The half that each role of a worker belongs to."""
ROLES: Final = frozenset(HALF_OF)
_OF_ONE: Final = frozenset(("half", "config", "warnings", "labels", "priority"))
"""Fields that each submission may fill in its own way."""


def halves_of(spec: ExperimentSpec) -> frozenset[str]:
    """The halves that a submission of this specification brings."""
    return BOTH if spec.half == "both" else frozenset((spec.half,))


def difference(one: ExperimentSpec, other: ExperimentSpec) -> str | None:
    """The first field in which they are not the two halves of one experiment; None if they are. Pure."""
    fields = (name for name in ExperimentSpec.__struct_fields__ if name not in _OF_ONE)
    for name in fields:
        if name == "stages" and len(one.stages) == len(other.stages):
            for mine, theirs in zip(one.stages, other.stages, strict=True):
                if (found := _difference(mine, theirs)) is not None:
                    return f"{found} of stage {mine.name}"
        elif getattr(one, name) != getattr(other, name):
            return name
    return None


def _difference(one: StageSpec, other: StageSpec) -> str | None:
    left = msgspec.structs.asdict(one)
    right = msgspec.structs.asdict(other)
    return next((name for name, value in left.items() if value != right[name]), None)
