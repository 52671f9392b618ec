"""`Key`: the name of a thing that has a lineage, and the kinds of such things."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from rftd.ops.ids import derive


class Kind(StrEnum):
    """The kinds of things, in the order in which one is made of the other."""

    EXPERIMENT = "experiment"
    WORKER = "worker"
    TASK = "task"
    LEASE = "lease"
    ROLLOUT = "rollout"
    EXPERIENCE = "experience"
    ROW = "row"
    BATCH = "batch"
    STEP = "step"
    WEIGHTS = "weights"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"


NUMBERED = frozenset({Kind.STEP, Kind.WEIGHTS, Kind.CHECKPOINT})
"""Kinds without an id of their own: a number in an experiment, and a generation."""


class Key(NamedTuple):
    """One thing. `id` is its own, its experiment's (numbered kinds), its group's (rollout) or its batch's (row)."""

    kind: Kind
    id: bytes
    number: int = -1
    """The number of a step or weight version, of a rollout in its group, or of a row's item in its batch."""
    generation: int = -1

    @property
    def uuid(self) -> UUID:
        """The id of the thing itself, for kinds that have one, and for rollouts."""
        own = UUID(bytes=self.id)
        return derive(own, "rollout", self.number) if self.kind is Kind.ROLLOUT else own
