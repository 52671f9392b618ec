"""`rftd steps`: an experiment's training steps, with every figure that its trainer reports."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.cli.output.data import emit, emit_csv
from rftd.daemon.cli.output.table import console_of, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, options_with
from rftd.daemon.cli.verbs.arguments import experiment_argument, steps_named
from rftd.daemon.http.views import experiments, history
from rftd.ops.errors import UsageError
from rftd.storage.queries.steps import StepRow
from rftd.streams.figures.step_figures import grad_norm_of, kl_of, loss_of, response_length_of, reward_of

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client

Cells = tuple[str, list[str]]
"""One column: its header, and a text for each step."""

PAGE: Final = 1000
"""The most steps that the API gives at once."""
_NEWEST: Final = 50
_CSV: Final = "csv"
_OWN: Final = ("reward_mean", "staleness_mean", "staleness_p95", "staleness_max", "items", "tokens", "duration_s")
"""Figures that the daemon has of each step, whatever its trainer reports."""
_RATE: Final = "tokens_per_s"
_PLACE: Final = ("step", "generation", "stage", "completed_at", "inherited")
_FIRST_TO_GO: Final = ("TOKENS", "STALE")
"""Columns that a narrow terminal has no room for beside wide numbers."""
_NEAR: Final = 3
_GAP: Final = 2
"""Blanks between two columns of a table."""


@click.command("steps")
@experiment_argument
@click.option("--metric", "metrics", metavar="NAME", multiple=True, help="Only this figure; may be repeated.")
@click.option("--names", is_flag=True, help="Print the name of each figure, with its value at the newest step.")
@click.option("--step", metavar="A:B", help="Only the steps A to B; also A, A: or :B.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    help=f"Number of newest steps to show. Default: {_NEWEST}, or all that --step names.",
)
@options_with(_CSV)
@click.pass_obj
def command(
    settings: Settings, name: str, metrics: tuple[str, ...], names: bool, step: str | None, limit: int | None
) -> None:
    """Show the training steps of experiment NAME: reward, loss, KL, gradient norm, response length and speed.

    A step has about fifty figures: --names lists them, --metric chooses some, and -o csv has all of them.
    """
    from rftd.daemon.http.client.client import Client

    first, last = steps_named(step)
    if limit is None and step is None:
        limit = 1 if names else _NEWEST
    with Client(settings) as client:
        newest = client.ask(experiments.summary, name=name).value.step
        found = _found(client, name, first or 0, newest if last is None else min(last, newest), limit)
    rows = [row for row, _ in found]
    columns = _chosen(rows, metrics) if metrics and rows else _known(rows)
    if not rows and settings.verbosity >= 0:
        say(_nothing(step, newest), err=True)
    if settings.output == _CSV:
        lead = ("step",) if metrics else _PLACE
        emit_csv([*lead, *(columns or metrics)], [{**plain, **_figures(row)} for row, plain in found])
    elif settings.machine_readable:
        emit({"items": [_item(row, plain, columns if metrics else None) for row, plain in found]}, settings)
    elif rows:
        console = console_of(settings)
        if names:
            console.print(_list(rows[-1], columns))
        else:
            console.print(render(rows, columns if metrics else None, width=console.width))


def render(rows: Sequence[StepRow], metrics: Sequence[str] | None, *, width: int) -> RenderableType:
    """The steps as a table of these figures, else of the telling ones.

    Figures that do not fit beside each other come in several tables, one below the other; of the telling ones those
    that are missed least are left out.
    """
    steps: Cells = ("STEP", [str(row.step) for row in rows])
    width += _GAP  # behind the last column there is none
    if metrics is None:
        columns = [*_telling(rows)]
        for header in _FIRST_TO_GO:
            if sum(map(_width, (steps, *columns))) > width:
                columns = [column for column in columns if column[0] != header]
    else:
        figures = [_figures(row) for row in rows]
        columns = [(_shown(name), [_text(each.get(name)) for each in figures]) for name in metrics]
    parts: list[RenderableType] = []
    for some in _fitting(columns, width - _width(steps)):
        parts += [Text("")] if parts else []
        headers = [header for header, _ in (steps, *some)]
        lines = zip(*[cells for _, cells in (steps, *some)], strict=True)
        parts.append(table(headers, lines, right=frozenset(headers)))
    return Group(*parts)


def _telling(rows: Sequence[StepRow]) -> Iterator[Cells]:
    """The columns that say whether it learns, and how fast; without those that no step has."""
    values: dict[str, list[float | None]] = {
        "REWARD": [_reward(row) for row in rows],
        "LOSS": [loss_of(row.metrics) for row in rows],
        "KL": [kl_of(row.metrics) for row in rows],
        "GRAD": [grad_norm_of(row.metrics) for row in rows],
        "LENGTH": [response_length_of(row.metrics) for row in rows],
        "STALE": [row.staleness_mean for row in rows],
        "TOKENS": [row.tokens for row in rows],
        "TOK/S": [_rate(row) for row in rows],
        "S/STEP": [row.duration_s for row in rows],
    }
    for header, cells in values.items():
        if any(value is not None for value in cells):
            yield header, [_text(value, digits=3) for value in cells]


def _reward(row: StepRow) -> float | None:
    """The mean reward of a step: of the batch's experiences, or of recorded rollouts as the trainer reports it."""
    return reward_of(row.metrics) if row.reward_mean is None else row.reward_mean


def _fitting(columns: Sequence[Cells], width: int) -> Iterator[list[Cells]]:
    """The columns in groups that are no wider than this; one that is too wide is alone."""
    some: list[Cells] = []
    for column in columns:
        if some and sum(map(_width, some)) + _width(column) > width:
            yield some
            some = []
        some.append(column)
    yield some


def _width(column: Cells) -> int:
    header, cells = column
    return _GAP + max(map(cell_len, (header, *cells)))


def _list(row: StepRow, names: Sequence[str]) -> RenderableType:
    figures = _figures(row)
    lines = [(_shown(name), _text(figures.get(name))) for name in names]
    return table(("FIGURE", f"STEP {row.step}"), lines, right=frozenset({f"STEP {row.step}"}))


def _found(client: Client, name: str, first: int, last: int, limit: int | None) -> list[tuple[StepRow, dict[str, Any]]]:
    """The newest steps of the range, as rows and as the API says them."""
    if limit is not None:
        first = max(first, last - limit + 1)
    found: list[tuple[StepRow, dict[str, Any]]] = []
    following: int | None = first
    while following is not None and following <= last:
        answer = client.ask(history.steps, name=name, first=following, last=last, limit=PAGE)
        found += zip(answer.value.items, answer.plain()["items"], strict=True)
        following = answer.value.next
    return found if limit is None else found[-limit:]


def _known(rows: Sequence[StepRow]) -> list[str]:
    """The names of all figures that any of the steps has: the daemon's own, then those of the trainer."""
    reported = {name for row in rows for name in row.metrics}
    return [*_OWN, _RATE, *sorted(reported - {*_OWN, _RATE, *_PLACE})]


def _chosen(rows: Sequence[StepRow], wanted: Sequence[str]) -> list[str]:
    """The names that were asked for, each once. Raises UsageError if no step has such a figure."""
    known = _known(rows)
    for name in wanted:
        if name not in known:
            near = [each for each in known if name and name.lower() in each.lower()]
            near = (near or difflib.get_close_matches(name, known, n=_NEAR))[:_NEAR]
            steps = f"step {rows[0].step}" if len(rows) == 1 else f"any of the steps {rows[0].step} to {rows[-1].step}"
            raise UsageError(
                f"{name!r} is no figure of {steps}",
                field="--metric",
                fix=(f"did you mean {', '.join(map(_shown, near))}? " if near else "") + "--names lists all figures",
            )
    return list(dict.fromkeys(wanted))


def _figures(row: StepRow) -> dict[str, float | None]:
    own: dict[str, float | None] = {name: getattr(row, name) for name in _OWN}
    return {**row.metrics, **own, _RATE: _rate(row)}


def _rate(row: StepRow) -> float | None:
    """Trained tokens per second of the step itself, without the wait for its batch."""
    return row.tokens / row.duration_s if row.duration_s > 0 else None


def _item(row: StepRow, plain: Mapping[str, Any], chosen: Sequence[str] | None) -> dict[str, Any]:
    """The step as the API says it; with figures that were chosen, its place and these."""
    if chosen is None:
        return dict(plain)
    figures = _figures(row)
    return {name: plain[name] for name in _PLACE} | {"metrics": {name: figures.get(name) for name in chosen}}


def _nothing(step: str | None, newest: int) -> str:
    if step is None or newest == 0:
        return "no step was trained yet"
    return f"no step of --step {step} was trained; the newest is step {newest}"


def _text(value: float | None, digits: int = 6) -> str:
    """A figure in few characters, `-` for none: a large one without decimals, else so many significant digits."""
    if value is None:
        return "-"
    if abs(value) >= 10**digits or float(value).is_integer():
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.{digits}g}"
    return f"{value:.{digits}g}"


def _shown(name: str) -> str:
    """The name of a figure, without anything that a terminal obeys: a workflow or a reward may have named it."""
    return name if name.isprintable() else repr(name)[1:-1]
