"""`rftd compare`: what the files of experiments differ in, and their figures at equal steps, tokens or time."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.quantity import lasting
from rftd.daemon.cli.output.table import console_of, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiments_argument
from rftd.daemon.cli.verbs.get import resolved
from rftd.daemon.http.views import comparison
from rftd.daemon.http.views.comparison import HELD_OUT, REWARD, Basis, ComparedPoint, Comparison
from rftd.ops.errors import UsageError

if TYPE_CHECKING:
    from rftd.daemon.config.field_path import FieldPath

_OWN: Final = ("name", "derived")
"""The fields of a resolved file that every experiment has for itself, and those that follow from others."""
_NEAR: Final = 3
_MISSING: Final = "-"


@click.command("compare")
@experiments_argument
@click.option(
    "--by",
    type=click.Choice(("steps", "tokens", "time")),
    default="steps",
    show_default=True,
    help="What is equal: training steps, trained tokens, or time since the start.",
)
@click.option("--metric", "metrics", metavar="FIGURE", multiple=True, help="Only this figure; may be repeated.")
@click.option(
    "--points",
    type=click.IntRange(1, comparison.MOST_POINTS),
    default=5,
    show_default=True,
    help="Number of points, up to what every experiment has reached.",
)
@shared_options
@click.pass_obj
def command(settings: Settings, names: tuple[str, ...], by: Basis, metrics: tuple[str, ...], points: int) -> None:
    """Compare the experiments NAME: the fields that differ, every default included, and their figures.

    Figures are the reward and the held-out scores, or those of --metric; `rftd steps NAME --names` lists them.
    """
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        answer = client.ask(comparison.comparison, name=list(names), by=by, points=points)
        files = [resolved(client, item.id) or {} for item in answer.value.items]
    differences = list(differing(files))
    chosen = _chosen(answer.value, metrics)
    if settings.machine_readable:
        emit({**answer.plain(), "differences": [_plain(*difference) for difference in differences]}, settings)
        return
    console_of(settings).print(render(answer.value, differences, chosen))
    if not answer.value.points and settings.verbosity >= 0:
        behind = next(item.name for item in answer.value.items if not item.step)
        say(f"{behind} has trained no step yet", err=True)


Difference = tuple["FieldPath", list[Any]]
"""A field, and its value in each file; `_Nothing` where the file has no such field."""


class _Nothing:
    """The value of a field that a file does not have."""


def differing(files: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """The fields in which files differ, in the order of the first that has them."""
    leaves = [dict(_leaves({key: value for key, value in file.items() if key not in _OWN})) for file in files]
    for path in dict.fromkeys(path for values in leaves for path in values):
        values = [one.get(path, _Nothing) for one in leaves]
        if any(value != values[0] for value in values):
            yield path, values


def _leaves(node: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """The fields below a node; a list of single values is one field."""
    if isinstance(node, dict) and (node or not path):
        for key, value in node.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(node, list) and any(isinstance(item, dict) for item in node):
        for number, item in enumerate(node):
            yield from _leaves(item, (*path, number))
    else:
        yield path, node


def render(compared: Comparison, differences: Sequence[Difference], figures: Sequence[str]) -> RenderableType:
    """The fields that differ, then for each figure a line of each experiment."""
    from rftd.daemon.config.field_path import show

    names = _titles(compared)
    lines = [(show(path), *map(_text, values)) for path, values in differences]
    parts: list[RenderableType] = [
        table(("FIELD", *names), lines) if lines else Text("their files differ in nothing but the name")
    ]
    for figure in figures:
        headers = ("EXPERIMENT", *(_at(compared.by, point) for point in compared.points))
        rows = [
            (name, *(_number(point, position, figure) for point in compared.points))
            for position, name in enumerate(names)
        ]
        parts += [Text(""), Text(f"{figure} at equal {compared.by}", style="bold")]
        parts.append(table(headers, rows, right=frozenset(headers[1:])))
    return Group(*parts)


def _titles(compared: Comparison) -> list[str]:
    """The names, with the id's beginning behind those that several have."""
    from rftd.daemon.cli.output.quantity import shorts

    names = [item.name for item in compared.items]
    ids = shorts([item.id for item in compared.items])
    return [f"{name} {id}" if names.count(name) > 1 else name for name, id in zip(names, ids, strict=True)]


def _chosen(compared: Comparison, metrics: Sequence[str]) -> list[str]:
    """The figures to be shown. Raises UsageError for one that no experiment has at any point."""
    standings = [standing for point in compared.points for standing in point.standings if standing is not None]
    names = list(dict.fromkeys(name for standing in standings for name in standing.figures))
    for metric in metrics if standings else ():
        if metric not in names:
            near = difflib.get_close_matches(metric, names, n=_NEAR)
            fix = f"did you mean {', '.join(near)}?" if near else "rftd steps NAME --names lists all figures"
            raise UsageError(f"{metric!r} is no figure of these experiments", field="--metric", fix=fix)
    if metrics:
        return list(dict.fromkeys(metrics)) if standings else []
    telling = {name for standing in standings for name, value in standing.figures.items() if value is not None}
    return [name for name in names if name in telling and (name == REWARD or name.startswith(HELD_OUT))]


def _plain(path: FieldPath, values: Sequence[Any]) -> dict[str, Any]:
    """A difference for programs: the value is left out where the file has no such field."""
    from rftd.daemon.config.field_path import show

    given = [{} if value is _Nothing else {"value": value} for value in values]
    return {"field": show(path), "values": given}


def _text(value: Any) -> str:
    if value is _Nothing:
        return _MISSING
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _at(by: str, point: ComparedPoint) -> str:
    return lasting(point.at) if by == "time" else f"{point.at:,.0f}"


def _number(point: ComparedPoint, position: int, figure: str) -> str:
    standing = point.standings[position]
    value = None if standing is None else standing.figures.get(figure)
    return _MISSING if value is None else f"{value:.4g}"
