"""`lineage`: both directions from one thing, level by level, bounded."""

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
from rftd.storage.lineage.upstream import UPSTREAM, Finder, Found, Left

NODES: Final = 200
"""The things in one direction of one answer, unless more children are asked for."""
AT_ONCE: Final = 20
"""The things that are expanded together: after each lot the bound is looked at."""


class _Walk:
    """A walk in one direction, breadth first."""

    def __init__(self, reading: TableSnapshot, finders: Mapping[Kind, Finder], *, most: int, nodes: int) -> None:
        self._reading = reading
        self._finders = finders
        self._most = most
        self._nodes = nodes
        self.found: list[Found] = []
        self.left: list[Left] = []
        self.cut: dict[Key, None] = {}
        self.bounded = False
        """True if things were left out because there are too many."""

    async def run(self, root: Key, depth: int) -> None:
        """Finds the neighbours of the root, theirs, and so on; each thing is expanded once."""
        # A lineage is no tree: an experience is in several batches, and a version drew for many experiences.
        seen = {root}
        level = [root]
        for _ in range(depth):
            fresh: dict[Key, None] = {}
            for kind in dict.fromkeys(key.kind for key in level):
                keys = [key for key in level if key.kind is kind]
                for first in range(0, len(keys), AT_ONCE):
                    await self._expand(kind, keys[first : first + AT_ONCE], seen, fresh)
            seen |= fresh.keys()
            level = list(fresh)
        self.cut |= dict.fromkeys(level)

    async def _expand(self, kind: Kind, keys: list[Key], seen: set[Key], fresh: dict[Key, None]) -> None:
        """Adds the neighbours of some things of a kind, as far as there is room for new ones."""
        if len(seen) + len(fresh) >= self._nodes:
            self.bounded = True
            self.cut |= dict.fromkeys(keys)
            return
        found, left = await self._finders[kind](self._reading, keys, self._most)
        self.left += left
        for each in found:
            if each.far not in seen and each.far not in fresh:
                if len(seen) + len(fresh) >= self._nodes:
                    self.bounded = True
                    self.cut[each.near] = None
                    continue
                fresh[each.far] = None
            self.found.append(each)


async def lineage(
    connection: AsyncConnection,
    wanted: str,
    *,
    direction: str = "both",
    depth: int = DEPTH,
    children: int = CHILDREN,
) -> LineageGraph:
    """The lineage of the named thing, in both directions or in one. Raises as `find`.

    `children` bounds the neighbours of one kind of each thing; what is left out is counted, up to a bound.
    """
    root = await find(connection, wanted)
    reading = TableSnapshot(connection)
    nodes = max(NODES, children)
    up = _Walk(reading, UPSTREAM, most=children, nodes=nodes)
    down = _Walk(reading, DOWNSTREAM, most=children, nodes=nodes)
    if direction != "down":
        await up.run(root, depth)
    if direction != "up":
        await down.run(root, depth)
    keys = list(dict.fromkeys([root, *(key for each in (*up.found, *down.found) for key in (each.near, each.far))]))
    described = await nodes_of(reading, keys)
    ids = {key: node.id for key, node in described.items()}
    return LineageGraph(
        root=ids[root],
        nodes=[described[key] for key in keys],
        up=[Link(cause=ids[each.far], effect=ids[each.near], what=each.what) for each in up.found],
        down=[Link(cause=ids[each.near], effect=ids[each.far], what=each.what) for each in down.found],
        more=[*_more(up, "up", ids), *_more(down, "down", ids)],
        cut=[ids[key] for key in dict.fromkeys((*up.cut, *down.cut))],
        bound=nodes if up.bounded or down.bounded else None,
    )


def _more(walk: _Walk, direction: str, ids: Mapping[Key, str]) -> list[More]:
    """The neighbours of each thing that are not shown, counted."""
    shown = Counter((each.near, each.far.kind) for each in walk.found)
    return [
        More(
            node=ids[left.near],
            direction=direction,
            kind=left.kind.value,
            count=left.total - shown[left.near, left.kind],
            exact=left.total != COUNTED,
        )
        for left in walk.left
        if left.total > shown[left.near, left.kind]
    ]
