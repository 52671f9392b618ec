"""`tree_lines`: one direction of a lineage as lines of an indented tree, each node unfolded once."""

from __future__ import annotations

from typing import Literal, NamedTuple

from rftd.storage.lineage.graph import LineageGraph, More, Node


class TreeLine(NamedTuple):
    """A line of the tree: a node with its relation to the line above, or a count of hidden neighbours."""

    depth: int
    """0 for the neighbours of the root."""
    relation: str
    """Relation of the node to the line above."""
    node: Node | None
    """The node; None for a count of hidden neighbours."""
    more: More | None
    """The hidden neighbours; None for a line with a node."""
    is_above: bool
    """True for a node unfolded in an earlier line."""
    is_cut: bool
    """True if some neighbours of the node are left out."""
    is_last: bool
    """True for the last line of its depth below one node."""


def tree_lines(graph: LineageGraph, direction: Literal["up", "down"]) -> list[TreeLine]:
    """Returns the causes (`up`) or the effects (`down`) of the root."""
    nodes = {node.id: node for node in graph.nodes}
    children: dict[str, list[tuple[str, str]]] = {}
    for link in graph.up if direction == "up" else graph.down:
        near, far = (link.effect, link.cause) if direction == "up" else (link.cause, link.effect)
        children.setdefault(near, []).append((far, link.what))
    hidden: dict[str, list[More]] = {}
    for neighbours in graph.more:
        if neighbours.direction == direction:
            hidden.setdefault(neighbours.node, []).append(neighbours)
    truncated = set(graph.cut)
    unfolded = {graph.root}

    def below(id: str, depth: int) -> list[tuple[int, str, str, More | None, bool]]:
        """Returns the lines below one node, the last one first."""
        lines: list[tuple[int, str, str, More | None, bool]] = [
            (depth, relation, far, None, False) for far, relation in children.get(id, ())
        ]
        lines += [(depth, "", "", more, False) for more in hidden.get(id, ())]
        if lines:
            lines[-1] = (*lines[-1][:4], True)
        return lines[::-1]

    waiting = below(graph.root, 0)
    tree: list[TreeLine] = []
    while waiting:
        depth, relation, id, more, is_last = waiting.pop()
        if more is not None:
            tree.append(TreeLine(depth, "", None, more, is_above=False, is_cut=False, is_last=is_last))
            continue
        # The graph is no tree: a batch is reached through each of its experiences, and unfolding it each time would
        # grow exponentially.
        is_above = id in unfolded and id in children
        tree.append(TreeLine(depth, relation, nodes[id], None, is_above, id in truncated, is_last))
        if not is_above:
            unfolded.add(id)
            waiting += below(id, depth + 1)
    return tree
