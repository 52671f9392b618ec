"""Halves: an experiment whose explorers and whose trainer come from two submissions of the same file."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from rftd.streams.spec import ExperimentSpec

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


class Disagreement(NamedTuple):
    """A field of the specification in which two submissions disagree, and its value in each."""

    field: str
    one: object
    other: object


def difference(one: ExperimentSpec, other: ExperimentSpec) -> Disagreement | None:
    """The first field in which they are not the two halves of one experiment; None if they are. Pure."""
    names = (name for name in ExperimentSpec.__struct_fields__ if name not in _OF_ONE)
    return next((found for name in names if (found := _below(name, getattr(one, name), getattr(other, name)))), None)


def _below(field: str, one: object, other: object) -> Disagreement | None:
    """The innermost field of `field` that differs."""
    if one == other:
        return None
    pairs: list[tuple[str, object, object]] = []
    if isinstance(one, msgspec.Struct) and type(one) is type(other):
        pairs = [(f"{field}.{name}", getattr(one, name), getattr(other, name)) for name in one.__struct_fields__]
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        pairs = [(f"{field}[{place}]", *both) for place, both in enumerate(zip(one, other, strict=True))]
    inner = (_below(*pair) for pair in pairs)
    return next((found for found in inner if found), Disagreement(field, one, other))
