"""`LineageGraph`: things, links between them, and counts of those left out, as they are asked for and sent."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops.ids import derive

DEPTH: Final = 4
CHILDREN: Final = 20
"""The neighbours of one kind that each thing shows."""
FORMS: Final = (
    "an id, at least 8 hex digits of one, the name of an experiment, NAME/task/STAGE.SEQUENCE, NAME/batch/STEP, "
    "NAME/eval/VERSION, or NAME/step/N, NAME/weights/N, NAME/checkpoint/N with .GENERATION after it if wanted"
)
"""The ways to name a thing."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One thing."""

    id: str
    """The name by which `rftd lineage` finds it."""
    kind: str
    experiment: str | None
    """The id of its experiment."""
    text: str
    """A line of facts about it."""
    made_ns: int | None
    """The time of its making, Unix time in nanoseconds."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` is part of what `effect` was made of."""

    cause: str
    effect: str
    what: str
    """The relation, read from the effect: `drawn by`, `item`, ..."""


class More(msgspec.Struct, frozen=True, kw_only=True):
    """The number of neighbours of `node` that are not shown."""

    node: str
    direction: str
    """`up` or `down`."""
    kind: str
    count: int
    exact: bool
    """False: there are at least so many."""


class LineageGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The lineage of one thing: all that it was made of, and all that was made of it."""

    root: str
    nodes: list[Node]
    """The root first, then the others as they were found."""
    up: list[Link]
    """The links to things that the root was made of."""
    down: list[Link]
    """The links to things that were made of the root."""
    more: list[More]
    cut: list[str]
    """Nodes at the end of the depth or of the whole bound: of their neighbours none, or not all, are shown."""
    bound: int | None
    """The bound on the things of a direction, if it left some out; ask for one of `cut`, or for more children."""


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
