"""`rftd steps`: an experiment's training steps, with every figure reported by its trainer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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
from rftd.daemon.http.views import experiments, history, series
from rftd.ops.errors import UsageError
from rftd.storage.queries.steps import StepRow
from rftd.streams.figures.step_figures import (
    MAIN,
    MAIN_COLUMNS,
    grad_norm_of,
    kl_of,
    loss_of,
    response_length_of,
    reward_of,
)

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Answer

Cells = tuple[str, list[str]]
"""One column: its header, and a text for each step."""

PAGE: Final = 1000
"""Maximum number of steps in one answer of the API."""
_NEWEST: Final = 50
"""Number of steps shown by default."""
_CSV: Final = "csv"
"""Output format of comma-separated values."""
_DAEMON_FIGURES: Final = (
    "reward_mean",
    "staleness_mean",
    "staleness_p95",
    "staleness_max",
    "items",
    "tokens",
    "duration_s",
)
"""Figures of each step known to the daemon, independent of the trainer."""
_RATE: Final = "tokens_per_s"
"""Name of the figure of trained tokens per second."""
_POSITION_FIELDS: Final = ("step", "generation", "stage", "completed_at", "inherited")
"""Fields locating a step, printed before its figures."""
_FIRST_TO_GO: Final = ("TOKENS", "STALE")
"""Columns dropped first on a narrow terminal beside wide numbers."""
_NEAR: Final = 3
"""Maximum number of similar names in an error."""
_GAP: Final = 2
"""Number of blanks between two columns of a table."""


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
@click.option(
    "--points",
    type=click.IntRange(1, series.MOST_SERIES_POINTS),
    help="The whole course in this number of lines, each the mean of some steps.",
)
@options_with(_CSV)
@click.pass_obj
def command(
    settings: Settings,
    name: str,
    metrics: tuple[str, ...],
    names: bool,
    step: str | None,
    limit: int | None,
    points: int | None,
) -> None:
    """Show the training steps of experiment NAME: reward, loss, KL, gradient norm, response length and speed.

    A step has about fifty figures: --names lists them, --metric chooses some, and -o csv has all of them. Of a long
    run, --points shows the course.
    """
    from rftd.daemon.http.client.client import Client

    first, last = steps_named(step)
    if points is not None:
        if names or limit is not None:
            raise click.UsageError("--points shows means over steps: leave --names and --limit out")
        _show_course(settings, name, metrics, first, last, points)
        return
    if limit is None and step is None:
        limit = 1 if names else _NEWEST
    with Client(settings) as client:
        newest = client.ask(experiments.summary, name=name).value.step
        end = newest if last is None else min(last, newest)
        # A table shows a few figures of fifty: those alone are asked for.
        wanted = metrics or (() if names or settings.output == _CSV or settings.machine_readable else MAIN)
        page = partial(client.ask, history.steps, name=name, metrics=list(wanted) or None)
        steps_found = _newest_steps(page, first or 0, end, limit)
        rows = [row for row, _ in steps_found]
        columns = _figure_names(rows)
        if metrics and rows:
            available = {*columns}
            if not available.issuperset(metrics):
                whole = client.ask(history.steps, name=name, first=rows[-1].step, last=rows[-1].step).value.items
                available.update(_figure_names(whole))
            columns = _chosen_figures(rows, metrics, columns, sorted(available))
    if not rows and settings.verbosity >= 0:
        say(_empty_words(step, newest), err=True)
    if settings.output == _CSV:
        lead = ("step",) if metrics else _POSITION_FIELDS
        emit_csv([*lead, *(columns or metrics)], [{**plain, **_figures_of(row)} for row, plain in steps_found])
    elif settings.machine_readable:
        emit({"items": [_json_row(row, plain, columns if metrics else None) for row, plain in steps_found]}, settings)
    elif rows:
        console = console_of(settings)
        if names:
            console.print(_figure_list(rows[-1], columns))
        else:
            console.print(render(rows, columns if metrics else None, width=console.width))


def render(rows: Sequence[StepRow], metrics: Sequence[str] | None, *, width: int) -> RenderableType:
    """Renders the steps as a table of the named figures, or of the default ones.

    Figures too many for the width come in several tables, each below the last; of the default figures, the least
    important are left out.
    """
    steps: Cells = ("STEP", [str(row.step) for row in rows])
    width += _GAP  # no blanks follow the last column
    if metrics is None:
        columns = [*_default_columns(rows)]
        for header in _FIRST_TO_GO:
            if sum(map(_column_width, (steps, *columns))) > width:
                columns = [column for column in columns if column[0] != header]
    else:
        figures = [_figures_of(row) for row in rows]
        columns = [
            (_printable_name(name), [_figure_text(step_figures.get(name)) for step_figures in figures])
            for name in metrics
        ]
    return _tables(steps, columns, width)


def _tables(steps: Cells, columns: Sequence[Cells], width: int) -> RenderableType:
    """Returns the columns in as many tables as the width needs, each with the steps in front."""
    parts: list[RenderableType] = []
    for column_group in _column_groups(columns, width - _column_width(steps)):
        parts += [Text("")] if parts else []
        headers = [header for header, _ in (steps, *column_group)]
        lines = zip(*[cells for _, cells in (steps, *column_group)], strict=True)
        parts.append(table(headers, lines, right=frozenset(headers)))
    return Group(*parts)


def _default_columns(rows: Sequence[StepRow]) -> Iterator[Cells]:
    """Yields the default columns about learning and speed; columns empty in every step are skipped."""
    cells_by_header: dict[str, list[float | None]] = {
        "REWARD": [_mean_reward(row) for row in rows],
        "LOSS": [loss_of(row.metrics) for row in rows],
        "KL": [kl_of(row.metrics) for row in rows],
        "GRAD": [grad_norm_of(row.metrics) for row in rows],
        "LENGTH": [response_length_of(row.metrics) for row in rows],
        "STALE": [row.staleness_mean for row in rows],
        "TOKENS": [row.tokens for row in rows],
        "TOK/S": [_tokens_per_s(row) for row in rows],
        "S/STEP": [row.duration_s for row in rows],
    }
    for header, cells in cells_by_header.items():
        if any(cell is not None for cell in cells):
            yield header, [_figure_text(cell, digits=3) for cell in cells]


def _mean_reward(row: StepRow) -> float | None:
    """Returns the mean reward of a step: of the batch's experiences, or of recorded rollouts as reported by the
    trainer.
    """
    return reward_of(row.metrics) if row.reward_mean is None else row.reward_mean


def _column_groups(columns: Sequence[Cells], width: int) -> Iterator[list[Cells]]:
    """Yields the columns in groups not wider than `width`; a wider column is alone."""
    column_group: list[Cells] = []
    for column in columns:
        if column_group and sum(map(_column_width, column_group)) + _column_width(column) > width:
            yield column_group
            column_group = []
        column_group.append(column)
    yield column_group


def _column_width(column: Cells) -> int:
    """Returns the width of a column in terminal columns, with its gap."""
    header, cells = column
    return _GAP + max(map(cell_len, (header, *cells)))


def _figure_list(row: StepRow, names: Sequence[str]) -> RenderableType:
    """Returns the figures of one step as a table of two columns."""
    figures = _figures_of(row)
    lines = [(_printable_name(name), _figure_text(figures.get(name))) for name in names]
    return table(("FIGURE", f"STEP {row.step}"), lines, right=frozenset({f"STEP {row.step}"}))


def _newest_steps(
    page: Callable[..., Answer[history.StepList]], first: int, last: int, limit: int | None
) -> list[tuple[StepRow, dict[str, Any]]]:
    """Returns the newest steps of the range, as rows and as JSON."""
    if limit is not None:
        first = max(first, last - limit + 1)
    steps: list[tuple[StepRow, dict[str, Any]]] = []
    following: int | None = first
    while following is not None and following <= last:
        answer = page(first=following, last=last, limit=PAGE)
        steps += zip(answer.value.items, answer.plain()["items"], strict=True)
        following = answer.value.next
    return steps if limit is None else steps[-limit:]


def _figure_names(rows: Sequence[StepRow]) -> list[str]:
    """Returns the names of all figures present in any step: the daemon's, then the trainer's."""
    reported = {name for row in rows for name in row.metrics}
    return [*_DAEMON_FIGURES, _RATE, *sorted(reported - {*_DAEMON_FIGURES, _RATE, *_POSITION_FIELDS})]


def _chosen_figures(
    rows: Sequence[StepRow], metrics: Sequence[str], present: Sequence[str], available: Sequence[str]
) -> list[str]:
    """Returns the requested names without duplicates. Raises UsageError if no step has such a figure."""
    for name in metrics:
        if name not in present:
            near = [figure_name for figure_name in available if name and name.lower() in figure_name.lower()]
            near = (near or difflib.get_close_matches(name, available, n=_NEAR))[:_NEAR]
            steps = f"step {rows[0].step}" if len(rows) == 1 else f"any of the steps {rows[0].step} to {rows[-1].step}"
            raise UsageError(
                f"{name!r} is not a figure of {steps}",
                field="--metric",
                fix=(f"did you mean {', '.join(map(_printable_name, near))}? " if near else "")
                + "--names lists all figures",
            )
    return list(dict.fromkeys(metrics))


def _show_course(
    settings: Settings, name: str, metrics: Sequence[str], first: int | None, last: int | None, points: int
) -> None:
    """Prints figures of a whole run in a few lines, each the mean over the steps of a bucket."""
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        ask = partial(client.ask, series.series, runs=[name], points=points, first=first, last=last)
        # Nothing is known of the figures before the first answer, which names them.
        named = dict(zip(metrics, map(_printable_name, metrics), strict=True))
        if not named:
            [described] = ask().value.runs
            named = _main_columns(described.metrics)
        answer = ask(metrics=list(named))
    course = answer.value
    # The last bucket may reach beyond the newest step.
    newest = next((run.last_step for run in course.runs if run.last_step is not None), 0)
    ends = [min(round(at), newest) for at in course.at]
    if settings.output == _CSV:
        rows = [
            {"step": end, **{line.metric: line.mean[number] for line in course.lines}}
            for number, end in enumerate(ends)
        ]
        emit_csv(["step", *named], rows)
    elif settings.machine_readable:
        emit(answer.plain(), settings)
    elif not course.at:
        say("no step was trained yet", err=True)
    else:
        steps: Cells = ("STEP", [str(end) for end in ends])
        digits = 6 if metrics else 3
        columns = [(named[line.metric], [_figure_text(mean, digits) for mean in line.mean]) for line in course.lines]
        console = console_of(settings)
        console.print(_tables(steps, columns, console.width + _GAP))


def _main_columns(available: Sequence[str]) -> dict[str, str]:
    """Returns the main figures of an experiment by name, each with its header."""
    groups = {
        **MAIN_COLUMNS,
        "REWARD": ("reward_mean", *MAIN_COLUMNS["REWARD"]),
        "STALE": ("staleness_mean",),
        "TOKENS": ("tokens",),
        "TOK/S": (_RATE,),
        "S/STEP": ("duration_s",),
    }
    first = {header: next((name for name in names if name in available), None) for header, names in groups.items()}
    return {name: header for header, name in first.items() if name is not None}


def _figures_of(row: StepRow) -> dict[str, float | None]:
    """Returns every figure of a step by name: the trainer's and the daemon's."""
    daemon_figures: dict[str, float | None] = {name: getattr(row, name) for name in _DAEMON_FIGURES}
    return {**row.metrics, **daemon_figures, _RATE: _tokens_per_s(row)}


def _tokens_per_s(row: StepRow) -> float | None:
    """Returns the trained tokens per second of the step, without the wait for the batch."""
    return row.tokens / row.duration_s if row.duration_s > 0 else None


def _json_row(row: StepRow, plain: Mapping[str, Any], chosen: Sequence[str] | None) -> dict[str, Any]:
    """Returns the step as answered by the API; with chosen figures, only position and figures."""
    if chosen is None:
        return dict(plain)
    figures = _figures_of(row)
    return {name: plain[name] for name in _POSITION_FIELDS} | {"metrics": {name: figures.get(name) for name in chosen}}


def _empty_words(step: str | None, newest: int) -> str:
    """Returns the message for an empty list; `newest` is the newest trained step, 0 for none."""
    if step is None or newest == 0:
        return "no step was trained yet"
    return f"no step of --step {step} was trained; the newest is step {newest}"


def _figure_text(figure: float | None, digits: int = 6) -> str:
    """Returns a figure in few characters, `-` for None: a large one without decimals, else with `digits` digits."""
    if figure is None:
        return "-"
    if abs(figure) >= 10**digits or float(figure).is_integer():
        return f"{figure:.0f}" if abs(figure) < 1e9 else f"{figure:.{digits}g}"
    return f"{figure:.{digits}g}"


def _printable_name(name: str) -> str:
    """Returns the name of a figure without terminal control characters: a workflow or a reward may have chosen it."""
    return name if name.isprintable() else repr(name)[1:-1]
