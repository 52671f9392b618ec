"""`rftd lineage`: the causes and effects of any one thing, as a tree or for Graphviz."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import short
from rftd.daemon.cli.output.terminal import cells, fitted, say, width_of
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.http.views import history
from rftd.storage.lineage.graph import Kind, LineageGraph, Link, Node

_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LEAST: Final = 20
"""Columns that a text keeps, however deep in the tree it stands."""
_INDENT: Final = 2


@click.command("lineage")
@click.argument("id")
@click.option("--direction", type=click.Choice(("both", "up", "down")), default="both", show_default=True)
@click.option("--depth", type=click.IntRange(0, 1000), default=4, show_default=True, help="Number of links to follow.")
@click.option("--all", "everything", is_flag=True, help="Show all neighbours, not the first 20 of each kind.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("tree", "dot")),
    default="tree",
    show_default=True,
    help="A text tree, or dot for Graphviz.",
)
@shared_options
@click.pass_obj
def command(settings: Settings, id: str, direction: str, depth: int, everything: bool, form: str) -> None:
    """Show what ID was made from (up), and what it led to (down).

    ID is an id, 8 or more of its hex digits, the name of an experiment, or one of NAME/task/STAGE.SEQUENCE,
    NAME/batch/STEP, NAME/eval/VERSION, NAME/step/N, NAME/weights/N, NAME/checkpoint/N; the last three may end
    with .GENERATION.
    """
    from rftd.daemon.http.client.client import Client

    children = history.MOST_CHILDREN if everything else None
    with Client(settings) as client:
        answer = client.ask(history.lineage, id=id, direction=direction, depth=depth, children=children)
    if not emitted(answer.plain(), settings):
        if form == "dot":
            click.echo(_dot(answer.value))
        else:
            width = width_of(sys.stdout)
            say("\n".join(part for line in _tree(answer.value) for part in _within(line, width)))


Branch = tuple[str, str, str]
"""A line of the tree: what stands before it, what before the rest of it if that is broken, and its text."""


def _within(branch: Branch, width: int | None) -> list[str]:
    """The lines of a branch, whose tree goes on beside those that do not fit."""
    first, others, text = branch
    if width is None:
        return [first + text]
    parts = fitted(text, max(_LEAST, width - cells(first)), indent=_INDENT).split("\n")
    return [(others if number else first) + part for number, part in enumerate(parts)]


def _tree(graph: LineageGraph) -> list[Branch]:
    """The causes of a thing, then its effects; a node that was shown before is not unfolded again."""
    nodes = {node.id: node for node in graph.nodes}
    root = nodes[graph.root]
    lines: list[Branch] = [("", "", f"{root.kind} {root.id}  {root.text}".rstrip())]
    for direction, title, links in (("up", "made of", graph.up), ("down", "became", graph.down)):
        if any(link for link in links):
            lines.append(("", "", f"{title}:"))
            lines += _Tree(graph, nodes, direction, links).lines(graph.root, "")
    if graph.bound is not None:
        lines.append(("", "", f"not everything is shown: {_bounded(graph.bound)}"))
    return lines


def _bounded(bound: int) -> str:
    """The text for an answer that reached its bound, with the ways to see more."""
    return f"at most {bound} things a direction; … marks where more follow. Ask for one of those, or give --all"


def _dot(graph: LineageGraph) -> str:
    """The lineage for `dot -Tsvg`: arrows lead from causes to effects."""
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
        lines.append(
            f"  bound [shape=plaintext, label={_quoted(f'not everything is shown: {_bounded(graph.bound)}')}];"
        )
    return "\n".join([*lines, "}"])


class _Tree:
    """One direction."""

    def __init__(self, graph: LineageGraph, nodes: dict[str, Node], direction: str, links: Sequence[Link]) -> None:
        self._nodes = nodes
        self._below: dict[str, list[tuple[str, str]]] = {}
        for link in links:
            near, far = (link.effect, link.cause) if direction == "up" else (link.cause, link.effect)
            self._below.setdefault(near, []).append((far, link.what))
        self._more = [more for more in graph.more if more.direction == direction]
        self._cut = set(graph.cut)
        self._shown: set[str] = set()

    def lines(self, near: str, margin: str) -> Iterator[Branch]:
        """The neighbours of one thing, and below each its own."""
        self._shown.add(near)
        rest = [_more(more.count, more.kind, more.exact) for more in self._more if more.node == near]
        below = self._below.get(near, [])
        for number, (far, what) in enumerate(below):
            last = number + 1 == len(below) and not rest
            # The graph is no tree: a batch is reached through each of its experiences, and without this the output
            # would grow exponentially.
            again = far in self._shown and far in self._below
            text = f"{what}: {_line(self._nodes[far])}"
            mark = "  (above)" if again else " …" if far in self._cut else ""
            inner = margin + ("   " if last else "│  ")
            yield f"{margin}{'└─ ' if last else '├─ '}", inner, text + mark
            if not again:
                yield from self.lines(far, inner)
        for number, text in enumerate(rest):
            yield f"{margin}{'└─ ' if number + 1 == len(rest) else '├─ '}", margin, text


def _line(node: Node) -> str:
    """A node below the root, by an id as short as this verb takes it; that of a rollout it takes whole only."""
    id = node.id if node.kind == Kind.ROLLOUT else _ID.sub(lambda found: short(found[0]), node.id)
    return f"{node.kind} {id}  {node.text}".rstrip()


def _more(count: int, kind: str, exact: bool) -> str:
    return f"… and {'' if exact else 'more than '}{count} more of kind {kind}"


def _quoted(text: str) -> str:
    # Graphviz' strings are escaped as JSON's are.
    return json.dumps(text, ensure_ascii=False)
