"""A lineage as a tree in text, or as a graph for Graphviz."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rftd.daemon.client.replies import Lineage, Link, Node


def tree(graph: Lineage) -> str:
    """What the thing was made of, then what became of it; what was shown before is not unfolded again."""
    nodes = {node.id: node for node in graph.nodes}
    lines = [_line(nodes[graph.root])]
    for direction, title, links in (("up", "made of", graph.up), ("down", "became", graph.down)):
        if any(link for link in links):
            lines.append(f"{title}:")
            lines += _Tree(graph, nodes, direction, links).lines(graph.root, "")
    if graph.bound is not None:
        lines.append(f"not everything is shown: {bounded(graph.bound)}")
    return "\n".join(lines)


def bounded(bound: int) -> str:
    """What it means that the bound was reached, and what helps."""
    return f"at most {bound} things a direction; … marks where more follow. Ask for one of those, or give --all"


def dot(graph: Lineage) -> str:
    """The same for `dot -Tsvg`: arrows lead from causes to effects."""
    lines = ["digraph lineage {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for node in graph.nodes:
        style = ", style=bold" if node.id == graph.root else ""
        label = "\n".join((node.kind, node.id, node.text))
        lines.append(f"  {_quoted(node.id)} [label={_quoted(label)}{style}];")
    for cause, effect, what in dict.fromkeys((link.cause, link.effect, link.what) for link in (*graph.up, *graph.down)):
        lines.append(f"  {_quoted(cause)} -> {_quoted(effect)} [label={_quoted(what)}];")
    for number, more in enumerate(graph.more):
        rest = f"more{number}"
        lines.append(f"  {rest} [shape=plaintext, label={_quoted(_more(more.count, more.kind, more.exact))}];")
        pair = (rest, _quoted(more.node)) if more.direction == "up" else (_quoted(more.node), rest)
        lines.append(f"  {pair[0]} -> {pair[1]} [style=dotted];")
    if graph.bound is not None:
        lines.append(f"  bound [shape=plaintext, label={_quoted(f'not everything is shown: {bounded(graph.bound)}')}];")
    return "\n".join([*lines, "}"])


class _Tree:
    """One direction."""

    def __init__(self, graph: Lineage, nodes: dict[str, Node], direction: str, links: Sequence[Link]) -> None:
        self._nodes = nodes
        self._below: dict[str, list[tuple[str, str]]] = {}
        for link in links:
            near, far = (link.effect, link.cause) if direction == "up" else (link.cause, link.effect)
            self._below.setdefault(near, []).append((far, link.what))
        self._more = [more for more in graph.more if more.direction == direction]
        self._cut = set(graph.cut)
        self._shown: set[str] = set()

    def lines(self, near: str, margin: str) -> Iterator[str]:
        """The neighbours of one thing, and below each its own."""
        self._shown.add(near)
        rest = [_more(more.count, more.kind, more.exact) for more in self._more if more.node == near]
        below = self._below.get(near, [])
        for number, (far, what) in enumerate(below):
            last = number + 1 == len(below) and not rest
            again = far in self._shown and far in self._below
            line = f"{margin}{'└─ ' if last else '├─ '}{what}: {_line(self._nodes[far])}"
            yield f"{line}  (above)" if again else f"{line} …" if far in self._cut else line
            if not again:
                yield from self.lines(far, margin + ("   " if last else "│  "))
        for number, text in enumerate(rest):
            yield f"{margin}{'└─ ' if number + 1 == len(rest) else '├─ '}{text}"


def _line(node: Node) -> str:
    return f"{node.kind} {node.id}  {node.text}"


def _more(count: int, kind: str, exact: bool) -> str:
    return f"… and {'' if exact else 'more than '}{count} more of kind {kind}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
