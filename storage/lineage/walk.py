"""`lineage`: both directions from a node, level by level, bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.storage.lineage.downstream import DOWNSTREAM
from rftd.storage.lineage.facts import nodes_of
from rftd.storage.lineage.finding import find
from rftd.storage.lineage.graph import CHILDREN, DEPTH, Key, Kind, LineageGraph, Link, More
from rftd.storage.lineage.reading import COUNTED, TableSnapshot
from rftd.storage.lineage.upstream import UPSTREAM, Finder, Neighbour, NeighbourTotal

NODES: Final = 200
"""Maximum nodes in one direction of an answer, unless more children are requested."""
NODES_PER_EXPANSION: Final = 20
"""Number of nodes expanded together; the bound is checked after each such group."""


class _Walk:
    """A breadth-first walk in a single direction."""

    def __init__(self, reading: TableSnapshot, finders: Mapping[Kind, Finder], *, most: int, nodes: int) -> None:
        """At most `most` neighbours of a kind for each node, and `nodes` in all."""
        self._reading = reading
        self._finders = finders
        self._most = most
        self._nodes = nodes
        self.neighbours: list[Neighbour] = []
        """Links found so far, each from an expanded node to a neighbour."""
        self.totals: list[NeighbourTotal] = []
        """Totals of neighbours where more exist."""
        self.cut: dict[Key, None] = {}
        """Nodes whose neighbours are not all among the links found, in the order of the search."""
        self.bounded = False
        """True if nodes were left out because of the bound."""

    async def run(self, root: Key, depth: int) -> None:
        """Finds the neighbours of the root, then the next level, and so on; each node is expanded once."""
        # A lineage is not a tree: an experience is in several batches, and a version samples many experiences.
        visited = {root}
        level = [root]
        for _ in range(depth):
            fresh: dict[Key, None] = {}
            for kind in dict.fromkeys(key.kind for key in level):
                keys = [key for key in level if key.kind is kind]
                for first in range(0, len(keys), NODES_PER_EXPANSION):
                    await self._expand(kind, keys[first : first + NODES_PER_EXPANSION], visited, fresh)
            visited |= fresh.keys()
            level = list(fresh)
        self.cut |= dict.fromkeys(level)

    async def _expand(self, kind: Kind, keys: list[Key], visited: set[Key], fresh: dict[Key, None]) -> None:
        """Adds the neighbours of some nodes of a kind, as far as the bound allows."""
        if len(visited) + len(fresh) >= self._nodes:
            self.bounded = True
            self.cut |= dict.fromkeys(keys)
            return
        neighbours, totals = await self._finders[kind](self._reading, keys, self._most)
        self.totals += totals
        for neighbour in neighbours:
            if neighbour.far not in visited and neighbour.far not in fresh:
                if len(visited) + len(fresh) >= self._nodes:
                    self.bounded = True
                    self.cut[neighbour.near] = None
                    continue
                fresh[neighbour.far] = None
            self.neighbours.append(neighbour)


async def lineage(
    connection: AsyncConnection,
    text: str,
    *,
    direction: str = "both",
    depth: int = DEPTH,
    children: int = CHILDREN,
) -> LineageGraph:
    """Returns the lineage of the named node, in one or both directions. Raises as `find`.

    `children` limits the neighbours of one kind for each node; hidden neighbours are counted, up to a bound.
    """
    root = await find(connection, text)
    reading = TableSnapshot(connection)
    nodes = max(NODES, children)
    up = _Walk(reading, UPSTREAM, most=children, nodes=nodes)
    down = _Walk(reading, DOWNSTREAM, most=children, nodes=nodes)
    if direction != "down":
        await up.run(root, depth)
    if direction != "up":
        await down.run(root, depth)
    keys = list(
        dict.fromkeys(
            [
                root,
                *(key for neighbour in (*up.neighbours, *down.neighbours) for key in (neighbour.near, neighbour.far)),
            ]
        )
    )
    described = await nodes_of(reading, keys)
    ids = {key: node.id for key, node in described.items()}
    return LineageGraph(
        root=ids[root],
        nodes=[described[key] for key in keys],
        up=[
            Link(cause=ids[neighbour.far], effect=ids[neighbour.near], what=neighbour.what)
            for neighbour in up.neighbours
        ],
        down=[
            Link(cause=ids[neighbour.near], effect=ids[neighbour.far], what=neighbour.what)
            for neighbour in down.neighbours
        ],
        more=[*_hidden_counts(up, "up", ids), *_hidden_counts(down, "down", ids)],
        cut=[ids[key] for key in dict.fromkeys((*up.cut, *down.cut))],
        bound=nodes if up.bounded or down.bounded else None,
    )


def _hidden_counts(walk: _Walk, direction: str, ids: Mapping[Key, str]) -> list[More]:
    """Counts the hidden neighbours of each node."""
    shown = Counter((neighbour.near, neighbour.far.kind) for neighbour in walk.neighbours)
    return [
        More(
            node=ids[total.near],
            direction=direction,
            kind=total.kind.value,
            count=total.total - shown[total.near, total.kind],
            exact=total.total != COUNTED,
        )
        for total in walk.totals
        if total.total > shown[total.near, total.kind]
    ]
