"""`rftd compare`: the differences between experiments' files, and their figures at equal steps, tokens or time."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.quantity import lasting, titles_of
from rftd.daemon.cli.output.table import console_of, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiments_argument
from rftd.daemon.http.views import comparison
from rftd.daemon.http.views import differences as views
from rftd.daemon.http.views.comparison import HELD_OUT, REWARD, Basis, ComparedPoint, Comparison
from rftd.daemon.http.views.differences import FieldDifference
from rftd.ops.errors import UsageError

_NEAR: Final = 3
"""Maximum number of similar names in an error."""
_MISSING: Final = "-"
"""Text of a missing figure or field."""


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
        ids = [experiment.id for experiment in answer.value.items]
        different = client.ask(views.diff, name=ids)
    differences = different.value.differences
    chosen = _chosen_figures(answer.value, metrics)
    if settings.machine_readable:
        emit({**answer.plain(), "differences": different.plain()["differences"]}, settings)
        return
    console_of(settings).print(render(answer.value, differences, chosen))
    if not answer.value.points and settings.verbosity >= 0:
        behind = next(experiment.name for experiment in answer.value.items if not experiment.step)
        say(f"{behind} has trained no step yet", err=True)


def render(compared: Comparison, differences: Sequence[FieldDifference], figures: Sequence[str]) -> RenderableType:
    """Renders the differing fields, then for each figure a line per experiment."""
    names = titles_of([(experiment.name, experiment.id) for experiment in compared.items])
    lines = [(difference.field, *map(_value_text, difference.values)) for difference in differences]
    parts: list[RenderableType] = [
        table(("FIELD", *names), lines) if lines else Text("the files differ only in the name")
    ]
    for figure in figures:
        headers = ("EXPERIMENT", *(_point_text(compared.by, point) for point in compared.points))
        rows = [
            (name, *(_figure_text(point, position, figure) for point in compared.points))
            for position, name in enumerate(names)
        ]
        parts += [Text(""), Text(f"{figure} at equal {compared.by}", style="bold")]
        parts.append(table(headers, rows, right=frozenset(headers[1:])))
    return Group(*parts)


def _chosen_figures(compared: Comparison, metrics: Sequence[str]) -> list[str]:
    """Returns the figures to be shown. Raises UsageError for a figure missing in every experiment at all points."""
    standings = [standing for point in compared.points for standing in point.standings if standing is not None]
    names = list(dict.fromkeys(name for standing in standings for name in standing.figures))
    for metric in metrics if standings else ():
        if metric not in names:
            near = difflib.get_close_matches(metric, names, n=_NEAR)
            fix = f"did you mean {', '.join(near)}?" if near else "rftd steps NAME --names lists all figures"
            raise UsageError(f"{metric!r} is not a figure of these experiments", field="--metric", fix=fix)
    if metrics:
        return list(dict.fromkeys(metrics)) if standings else []
    telling = {name for standing in standings for name, figure in standing.figures.items() if figure is not None}
    return [name for name in names if name in telling and (name == REWARD or name.startswith(HELD_OUT))]


def _value_text(contents: Mapping[str, Any]) -> str:
    """Returns a field's value as text; `-` for a field missing in the file."""
    if "value" not in contents:
        return _MISSING
    content = contents["value"]
    return content if isinstance(content, str) and content else json.dumps(content, ensure_ascii=False)


def _point_text(by: str, point: ComparedPoint) -> str:
    """Returns a point of the comparison in words: a duration, or a count."""
    return lasting(point.at) if by == "time" else f"{point.at:,.0f}"


def _figure_text(point: ComparedPoint, position: int, figure: str) -> str:
    """Returns a figure of the experiment at `position`, at this point; `-` if it has none."""
    standing = point.standings[position]
    figure_then = None if standing is None else standing.figures.get(figure)
    return _MISSING if figure_then is None else f"{figure_then:.4g}"
