"""`LineageGraph`: nodes, links between them, and counts of hidden neighbours, as requested and sent over the API."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops.ids import derive

DEPTH: Final = 4
"""Default depth of a lineage."""
CHILDREN: Final = 20
"""Maximum neighbours of one kind shown for each node."""
FORMS: Final = (
    "an id, at least 8 hex digits of one, the name of an experiment, NAME/task/STAGE.SEQUENCE, NAME/batch/STEP, "
    "NAME/eval/VERSION, or NAME/step/N, NAME/weights/N, NAME/checkpoint/N with .GENERATION after it if wanted"
)
"""The accepted ways to name a node."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a lineage: an experiment, a task, an experience, a step, weights and so on."""

    id: str
    """The name by which `rftd lineage` finds the node."""
    kind: str
    """Kind of the node."""
    experiment: str | None
    """The id of the node's experiment."""
    text: str
    """A line of facts about the node."""
    made_ns: int | None
    """Creation time, Unix time in nanoseconds."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A causal link: `cause` is a part of what `effect` was made of."""

    cause: str
    """Id of the cause."""
    effect: str
    """Id of the effect."""
    what: str
    """The relation, read from the effect: `drawn by`, `item`, ..."""


class More(msgspec.Struct, frozen=True, kw_only=True):
    """The number of hidden neighbours of `node` of one kind, in one direction."""

    node: str
    """Id of the node."""
    direction: str
    """`up` or `down`."""
    kind: str
    """Kind of the hidden neighbours."""
    count: int
    """Number of hidden neighbours."""
    exact: bool
    """False: `count` is a lower bound."""


class LineageGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The lineage of a node: all causes, and all effects."""

    root: str
    """Id of the requested node."""
    nodes: list[Node]
    """The root first, then the others in the order of the search."""
    up: list[Link]
    """The links to the causes of the root."""
    down: list[Link]
    """The links to the effects of the root."""
    more: list[More]
    """Counts of hidden neighbours."""
    cut: list[str]
    """Nodes at the maximum depth or at the overall bound: none, or not all, of their neighbours are shown."""
    bound: int | None
    """The maximum number of nodes in a direction, if nodes were left out; ask for a node of `cut`, or for more
    children.
    """


class Kind(StrEnum):
    """The kinds of nodes, in causal order, causes first."""

    EXPERIMENT = "experiment"
    """An experiment."""
    WORKER = "worker"
    """A worker process."""
    TASK = "task"
    """A task: a group of rollouts."""
    LEASE = "lease"
    """A lease of a task or of held-out rows."""
    ROLLOUT = "rollout"
    """A rollout of a task."""
    EXPERIENCE = "experience"
    """The experience left by a rollout."""
    ROW = "row"
    """A dataset row in a batch."""
    BATCH = "batch"
    """A planned batch."""
    STEP = "step"
    """An executed training step."""
    WEIGHTS = "weights"
    """A weight version."""
    CHECKPOINT = "checkpoint"
    """A checkpoint."""
    EVAL = "eval"
    """An evaluation."""


NUMBERED = frozenset({Kind.STEP, Kind.WEIGHTS, Kind.CHECKPOINT})
"""Kinds without an id: their key is a number in an experiment, and a generation."""


class Key(NamedTuple):
    """The key of a node. `id` belongs to the node, or to the experiment (numbered kinds), group (rollout) or batch
    (row).
    """

    kind: Kind
    """Kind of the node."""
    id: bytes
    """Id as bytes: of the node, its experiment, group or batch."""
    number: int = -1
    """The number of a step or weight version, of a rollout in its group, or of a row's item in its batch."""
    generation: int = -1
    """Generation of a step, weights or a checkpoint; -1 for other kinds."""

    @property
    def uuid(self) -> UUID:
        """Returns the node's own id, for kinds with an id, and for rollouts."""
        node_uuid = UUID(bytes=self.id)
        return derive(node_uuid, "rollout", self.number) if self.kind is Kind.ROLLOUT else node_uuid
