"""`rftd compare`: the differences between experiments' files, and their figures at equal steps, tokens or time."""

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
"""Fields of a resolved file specific to each experiment, or derived from other fields."""
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
        files = [resolved(client, experiment.id) or {} for experiment in answer.value.items]
    differences = list(differing(files))
    chosen = _chosen(answer.value, metrics)
    if settings.machine_readable:
        emit({**answer.plain(), "differences": [_plain(*difference) for difference in differences]}, settings)
        return
    console_of(settings).print(render(answer.value, differences, chosen))
    if not answer.value.points and settings.verbosity >= 0:
        behind = next(experiment.name for experiment in answer.value.items if not experiment.step)
        say(f"{behind} has trained no step yet", err=True)


Difference = tuple["FieldPath", list[Any]]
"""A field with its content in each file; `_Nothing` if the file has no such field."""


class _Nothing:
    """Stands for a field missing in a file."""


def differing(files: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Yields the differing fields of files, in the order of the first file with the field."""
    leaves = [dict(_leaves({key: content for key, content in file.items() if key not in _OWN})) for file in files]
    for path in dict.fromkeys(path for fields in leaves for path in fields):
        contents = [fields.get(path, _Nothing) for fields in leaves]
        if any(content != contents[0] for content in contents):
            yield path, contents


def _leaves(node: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Yields the fields below a node; a list of scalars is one field."""
    if isinstance(node, dict) and (node or not path):
        for key, child in node.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(node, list) and any(isinstance(element, dict) for element in node):
        for number, element in enumerate(node):
            yield from _leaves(element, (*path, number))
    else:
        yield path, node


def render(compared: Comparison, differences: Sequence[Difference], figures: Sequence[str]) -> RenderableType:
    """Renders the differing fields, then for each figure a line per experiment."""
    from rftd.daemon.config.field_path import show

    names = _titles(compared)
    lines = [(show(path), *map(_text, contents)) for path, contents in differences]
    parts: list[RenderableType] = [
        table(("FIELD", *names), lines) if lines else Text("the files differ only in the name")
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
    """Returns the names, with the beginning of the id after repeated ones."""
    from rftd.daemon.cli.output.quantity import shorts

    names = [experiment.name for experiment in compared.items]
    ids = shorts([experiment.id for experiment in compared.items])
    return [f"{name} {id}" if names.count(name) > 1 else name for name, id in zip(names, ids, strict=True)]


def _chosen(compared: Comparison, metrics: Sequence[str]) -> list[str]:
    """Returns the figures to be shown. Raises UsageError for a figure missing in every experiment at all points."""
    standings = [standing for point in compared.points for standing in point.standings if standing is not None]
    names = list(dict.fromkeys(name for standing in standings for name in standing.figures))
    for metric in metrics if standings else ():
        if metric not in names:
            near = difflib.get_close_matches(metric, names, n=_NEAR)
            fix = f"did you mean {', '.join(near)}?" if near else "rftd steps NAME --names lists all figures"
            raise UsageError(f"{metric!r} is no figure of these experiments", field="--metric", fix=fix)
    if metrics:
        return list(dict.fromkeys(metrics)) if standings else []
    telling = {name for standing in standings for name, figure in standing.figures.items() if figure is not None}
    return [name for name in names if name in telling and (name == REWARD or name.startswith(HELD_OUT))]


def _plain(path: FieldPath, contents: Sequence[Any]) -> dict[str, Any]:
    """Returns a difference for programs, leaving out the value of a field missing in a file."""
    from rftd.daemon.config.field_path import show

    value_objects = [{} if content is _Nothing else {"value": content} for content in contents]
    return {"field": show(path), "values": value_objects}


def _text(content: Any) -> str:
    if content is _Nothing:
        return _MISSING
    return content if isinstance(content, str) and content else json.dumps(content, ensure_ascii=False)


def _at(by: str, point: ComparedPoint) -> str:
    return lasting(point.at) if by == "time" else f"{point.at:,.0f}"


def _number(point: ComparedPoint, position: int, figure: str) -> str:
    standing = point.standings[position]
    figure_then = None if standing is None else standing.figures.get(figure)
    return _MISSING if figure_then is None else f"{figure_then:.4g}"
