"""`rftd lineage`: the causes and effects of any one thing, as a tree or for Graphviz."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Final, Literal

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import short
from rftd.daemon.cli.output.terminal import cells, fitted, say, width_of
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.http.views import history
from rftd.storage.lineage.graph import Kind, LineageGraph, Node
from rftd.storage.lineage.tree import tree_lines

_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Form of an id: a UUID in hexadecimal digits."""
_LEAST: Final = 20
"""Minimum width in columns of a text, at any depth in the tree."""
_INDENT: Final = 2
"""Number of columns by which the continuation of a broken text is indented."""


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
            click.echo(_dot_text(answer.value))
        else:
            width = width_of(sys.stdout)
            say("\n".join(piece for line in _tree_lines(answer.value) for piece in _wrap_line(line, width)))


Branch = tuple[str, str, str]
"""A line of the tree: its prefix, the prefix of its continuation lines, and its text."""


def _wrap_line(branch: Branch, width: int | None) -> list[str]:
    """Returns the lines of a branch, with the tree continued beside broken lines."""
    first, continuation_prefix, text = branch
    if width is None:
        return [first + text]
    parts = fitted(text, max(_LEAST, width - cells(first)), indent=_INDENT).split("\n")
    return [(continuation_prefix if number else first) + text_line for number, text_line in enumerate(parts)]


def _tree_lines(graph: LineageGraph) -> list[Branch]:
    """Returns the lines of a thing's causes, then those of its effects; a node shown before is not unfolded again."""
    root = next(node for node in graph.nodes if node.id == graph.root)
    lines: list[Branch] = [("", "", f"{root.kind} {root.id}  {root.text}".rstrip())]
    if graph.up:
        lines += [("", "", "made of:"), *_branches(graph, "up")]
    if graph.down:
        lines += [("", "", "became:"), *_branches(graph, "down")]
    if graph.bound is not None:
        lines.append(("", "", f"not everything is shown: {_bound_note(graph.bound)}"))
    return lines


def _bound_note(bound: int) -> str:
    """Returns the text for an answer limited by its bound, with the ways to see more."""
    return f"at most {bound} things a direction; … marks where more follow. Ask for one of those, or give --all"


def _dot_text(graph: LineageGraph) -> str:
    """Returns the lineage for `dot -Tsvg`: arrows lead from causes to effects."""
    lines = ["digraph lineage {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for node in graph.nodes:
        style = ", style=bold" if node.id == graph.root else ""
        label = "\n".join((node.kind, node.id, node.text))
        lines.append(f"  {_dot_string(node.id)} [label={_dot_string(label)}{style}];")
    for cause, effect, link_label in dict.fromkeys(
        (link.cause, link.effect, link.what) for link in (*graph.up, *graph.down)
    ):
        lines.append(f"  {_dot_string(cause)} -> {_dot_string(effect)} [label={_dot_string(link_label)}];")
    for number, more in enumerate(graph.more):
        more_node = f"more{number}"
        lines.append(
            f"  {more_node} [shape=plaintext, label={_dot_string(_more_words(more.count, more.kind, more.exact))}];"
        )
        pair = (more_node, _dot_string(more.node)) if more.direction == "up" else (_dot_string(more.node), more_node)
        lines.append(f"  {pair[0]} -> {pair[1]} [style=dotted];")
    if graph.bound is not None:
        lines.append(
            f"  bound [shape=plaintext, label={_dot_string(f'not everything is shown: {_bound_note(graph.bound)}')}];"
        )
    return "\n".join([*lines, "}"])


def _branches(graph: LineageGraph, direction: Literal["up", "down"]) -> Iterator[Branch]:
    """Yields the lines of one direction, with the art of the tree before them."""
    margins = [""]
    for line in tree_lines(graph, direction):
        margin = margins[line.depth]
        del margins[line.depth + 1 :]
        margins.append(margin + ("   " if line.is_last else "│  "))
        branch = f"{margin}{'└─ ' if line.is_last else '├─ '}"
        if line.node is None:
            assert line.more is not None
            yield branch, margin, _more_words(line.more.count, line.more.kind, line.more.exact)
            continue
        mark = "  (above)" if line.is_above else " …" if line.is_cut else ""
        yield branch, margins[-1], f"{line.relation}: {_node_line(line.node)}{mark}"


def _node_line(node: Node) -> str:
    """Returns a node below the root, with the shortest id accepted by `rftd lineage`; rollouts keep the whole id."""
    id = node.id if node.kind == Kind.ROLLOUT else _ID.sub(lambda match: short(match[0]), node.id)
    return f"{node.kind} {id}  {node.text}".rstrip()


def _more_words(count: int, kind: str, exact: bool) -> str:
    """Returns the line for nodes not shown."""
    return f"… and {'' if exact else 'more than '}{count} more of kind {kind}"


def _dot_string(text: str) -> str:
    # Graphviz escapes strings as JSON does.
    """Returns a text as a string of Graphviz."""
    return json.dumps(text, ensure_ascii=False)
