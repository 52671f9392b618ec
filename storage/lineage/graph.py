"""A lineage as it is asked for and sent: things, links between them, and what was left out."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.storage.queries.rows import if_unsent

DEPTH: Final = 4
CHILDREN: Final = 20
"""Neighbours of one kind that each thing shows."""
FORMS: Final = (
    "an id, at least 8 hex digits of one, the name of an experiment, NAME/task/STAGE.SEQUENCE, NAME/batch/STEP, "
    "NAME/eval/VERSION, or NAME/step/N, NAME/weights/N, NAME/checkpoint/N with .GENERATION after it if wanted"
)
"""The ways to name a thing."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One thing."""

    id: str
    """`rftd lineage` finds it by this."""
    kind: str
    experiment: str | None
    """Its experiment's id."""
    text: str
    """What there is to say in one line."""
    made_ns: int | None
    """When it came to be."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` is part of what `effect` was made of."""

    cause: str
    effect: str
    what: str
    """How, read from the effect: `drawn by`, `item`, ..."""


class More(msgspec.Struct, frozen=True, kw_only=True):
    """Things beside `node` that are not shown."""

    node: str
    direction: str
    """`up` or `down`."""
    kind: str
    count: int
    exact: bool
    """False: there are at least so many."""


class LineageGraph(msgspec.Struct, frozen=True, kw_only=True):
    """What one thing was made of, and what became of it."""

    root: str
    nodes: list[Node]
    """The root first, then as they were found."""
    up: list[Link]
    """Links on the way to what the root was made of."""
    down: list[Link]
    """Links on the way to what became of it."""
    more: list[More]
    cut: list[str]
    """Nodes at the end of the depth or of the whole bound: of their neighbours none, or not all, are shown."""
    bound: int | None = if_unsent(None)
    """How many things a direction may show, if that left some out; ask for one of `cut`, or for more children."""
