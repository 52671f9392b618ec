"""`rftd sweep`: submits experiments differing in a few fields; `rftd sweeps`: their list, table and cancellation."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.cli.output.data import emit, emitted
from rftd.daemon.cli.output.table import console_of, state, table
from rftd.daemon.cli.output.terminal import one_line, say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import reason_option, request_id_option
from rftd.daemon.cli.verbs.rehearsal import dry_run_option, show_consequence
from rftd.daemon.http.views import commands, sweeps
from rftd.daemon.http.views.comparison import HELD_OUT, REWARD
from rftd.daemon.http.views.sweeps import NOT_SUBMITTED, STOPPED, SeedSpread, SweepPage, SweepSummary
from rftd.ops.errors import UnreachableError, UsageError, WaitTimeoutError

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client

MOST_RUNS: Final = 64
"""Maximum number of runs in a sweep submitted without confirmation."""
_POLL_S: Final = 1.0
"""Seconds between two looks at an awaited sweep."""
_GOOD: Final = "completed"
"""State of a run that ended without an error."""
_NAME = click.argument("name", metavar="NAME")
"""Adds the argument NAME of a sweep."""


@click.command("sweep")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "-s",
    "overrides",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="Values of one field; repeatable, and every combination is run. With one value: set it in all runs.",
)
@click.option("--seeds", type=click.IntRange(1, sweeps.MOST_RUNS), default=1, show_default=True, help="Runs of each.")
@click.option("--name", "sweep_name", metavar="NAME", help="Name of the sweep. Default: that of the file.")
@click.option(
    "--at-once",
    type=click.IntRange(1, sweeps.MOST_RUNS),
    metavar="N",
    help="Maximum number of concurrent runs. Default: the daemon's number of slots.",
)
@click.option(
    "--halve-at",
    metavar="N,M,...",
    help="At these weight versions, stop the half of the settings with the lower held-out scores.",
)
@click.option("--halve-by", default="", metavar="TASKSET", help="Held-out taskset that decides. Default: the first.")
@click.option(
    "--max-runs",
    type=click.IntRange(1, sweeps.MOST_RUNS),
    default=MOST_RUNS,
    show_default=True,
    help="Maximum number of runs; a larger sweep is rejected.",
)
@click.option("--wait", is_flag=True, help="Wait for the end, and show the table; exit 1 if a run does not complete.")
@dry_run_option
@request_id_option
@shared_options
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    overrides: tuple[str, ...],
    seeds: int,
    sweep_name: str | None,
    at_once: int | None,
    halve_at: str | None,
    halve_by: str,
    max_runs: int,
    wait: bool,
    dry_run: bool,
    request_id: str | None,
) -> None:
    """Submit a sweep of the experiment in a YAML FILE: one run for each combination of values, and each seed.

    All runs are checked before any begins. The daemon begins them one after the other, also after it was killed.
    """
    from rftd.daemon.http.client.client import Client

    settings: Settings = ctx.obj
    body = _sweep_body(file, overrides, seeds, max_runs, sweep_name, at_once)
    body = msgspec.structs.replace(body, halving=_halving_of(halve_at, halve_by))
    with Client(settings) as client:
        if dry_run:
            rehearsed = client.rehearse(sweeps.submit_sweep, body)
            show_consequence(rehearsed.value, rehearsed.plain(), settings)
            return
        answer = client.send(sweeps.submit_sweep, body, request_id=request_id)
        receipt = answer.value
        if settings.machine_readable and not wait:
            emit(answer.plain(), settings)
        elif settings.verbosity >= 0:
            counts = f"{receipt.runs} runs, {receipt.at_once} at once"
            say(f"accepted {receipt.id}  sweep={receipt.name}  {counts}", err=wait)
            typed = shlex.quote(receipt.name)
            say(f"  table: rftd sweeps show {typed}   stop: rftd sweeps cancel {typed}", err=wait)
        if wait:
            ctx.exit(_follow_to_end(client, receipt.id, settings))


def _sweep_body(
    file: str,
    overrides: tuple[str, ...],
    seeds: int,
    max_runs: int,
    name: str | None,
    at_once: int | None,
) -> sweeps.SubmitSweep:
    """Builds the sweep for the daemon. Raises UsageError, ConfigErrors."""
    from rftd.daemon.cli.verbs.arguments import load_experiment, read_experiment
    from rftd.daemon.config.sweep_points import axes_of, changes_between, check_size, swept_runs
    from rftd.workers.devices.host import ANY_HOST

    text, origin = read_experiment(file)
    fixed, axes = axes_of(overrides)
    check_size(axes, seeds, max_runs, possible=sweeps.MOST_RUNS)

    def load(chosen: tuple[str, ...]) -> dict[str, Any]:
        submission = load_experiment(text, origin, chosen, ANY_HOST, True)
        if submission.wrong:
            raise submission.wrong
        return submission.config

    runs = list(swept_runs(load, fixed, axes, seeds))
    config = runs[0].config
    points = [
        sweeps.SweptPoint(
            settings=run.settings,
            seed=run.seed,
            changes=[
                sweeps.SweptField(path=list(change.field), value=change.value)
                for change in changes_between(config, run.config)
            ],
        )
        for run in runs
    ]
    return sweeps.SubmitSweep(config=config, points=points, name=name, at_once=at_once)


def _halving_of(at: str | None, taskset: str) -> sweeps.HalveSweep | None:
    """Returns the requested halving. Raises UsageError for invalid weight versions."""
    if at is None:
        if taskset:
            raise UsageError("--halve-by says by which score", field="--halve-by", fix="say where: --halve-at N,M")
        return None
    versions = [version.strip() for version in at.split(",")]
    if not all(version.isascii() and version.isdigit() and int(version) for version in versions):
        raise UsageError(f"{at!r} are no weight versions", field="--halve-at", fix="write --halve-at 20,40")
    return sweeps.HalveSweep(at=[int(version) for version in versions], taskset=taskset)


def _follow_to_end(client: Client, sweep: str, settings: Settings) -> int:
    """Waits for the end of a sweep, and shows its table. Returns the exit status for the end."""
    last_line = ""
    answered_s = time.monotonic()
    while True:
        try:
            answer = client.ask(sweeps.sweep_page, sweep=sweep)
        except (UnreachableError, WaitTimeoutError):  # a killed daemon continues the sweep after its restart
            if time.monotonic() - answered_s > settings.answer_timeout_s:
                raise
            time.sleep(_POLL_S)
            continue
        answered_s = time.monotonic()
        page = answer.value
        line = _state_counts(page.sweep.states)
        if line != last_line and settings.verbosity >= 0:
            say(line, err=True)
            last_line = line
        if page.sweep.over:
            break
        time.sleep(_POLL_S)
    if not emitted(answer.plain(), settings):
        console_of(settings).print(render(page))
    return 0 if page.sweep.states.keys() <= {_GOOD, STOPPED} else 1


@click.group("sweeps")
def group() -> None:
    """List sweeps, show the table of one, or cancel it."""


@group.command("ls")
@shared_options
@click.pass_obj
def ls(settings: Settings) -> None:
    """List the sweeps, newest first."""
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        answer = client.ask(sweeps.sweeps)
    if emitted(answer.plain(), settings):
        return
    rows = [
        (summary.name, str(summary.runs), _phase_word(summary), _state_counts(summary.states))
        for summary in answer.value.items
    ]
    console_of(settings).print(table(("NAME", "RUNS", "STATE", "OF WHICH"), rows, right=("RUNS",)))


@group.command("show")
@_NAME
@click.option("--runs", is_flag=True, help="Show each run, not only the mean over its seeds.")
@click.option("--wait", is_flag=True, help="Wait for the end first; exit 1 if a run did not complete.")
@shared_options
@click.pass_context
def show(ctx: click.Context, name: str, runs: bool, wait: bool) -> None:
    """Show the table of sweep NAME: for each setting mean and standard deviation over its seeds."""
    from rftd.daemon.http.client.client import Client

    settings: Settings = ctx.obj
    with Client(settings) as client:
        if wait:
            ctx.exit(_follow_to_end(client, name, settings))
        answer = client.ask(sweeps.sweep_page, sweep=name)
    if not emitted(answer.plain(), settings):
        console_of(settings).print(render(answer.value, runs=runs))


@group.command("cancel")
@_NAME
@reason_option
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def cancel(settings: Settings, name: str, reason: str, dry_run: bool, request_id: str | None) -> None:
    """Cancel sweep NAME: no further run begins, and those that have not ended are cancelled."""
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        body = commands.Reason(reason=reason)
        if dry_run:
            rehearsed = client.rehearse(sweeps.cancel_sweep, body, sweep=name)
            show_consequence(rehearsed.value, rehearsed.plain(), settings)
            return
        answer = client.send(sweeps.cancel_sweep, body, sweep=name, request_id=request_id)
    if not emitted(answer.plain(), settings) and settings.verbosity >= 0:
        say(f"sweep {name} is cancelled; its runs end in a moment")


def render(page: SweepPage, *, runs: bool = False) -> RenderableType:
    """Renders the table of a sweep, best setting first by its first figure, with the failed runs below."""
    sweep = page.sweep
    title = f"{sweep.name}  {_phase_word(sweep)}: {_state_counts(sweep.states)}"
    figures = _figure_names(page)
    fields = list(page.cells[0].settings)
    parts: list[RenderableType] = [Text(title, style="bold")]
    if runs:
        headers = ("RUN", *fields, "SEED", "STATE", "STEP", *figures)
        rows: list[tuple[str | Text, ...]] = [
            (
                run.name,
                *run.settings.values(),
                str(run.seed),
                state(run.state),
                f"{run.step}/{run.total_steps}" if run.total_steps else "-",
                *("-" if (figure := run.figures.get(name)) is None else f"{figure:.4g}" for name in figures),
            )
            for run in page.runs
        ]
    else:
        headers = (*fields, "RUNS", "OF WHICH", *figures)
        rows = [
            (
                *cell.settings.values(),
                str(cell.runs),
                _state_counts(cell.states),
                *(_spread_text(cell.figures.get(name)) for name in figures),
            )
            for cell in page.cells
        ]
    parts.append(table(headers, rows, right=("SEED", "STEP", "RUNS", *figures)))
    wrong = list(_failed_run_lines(page))
    return Group(*parts, *([Text("")] if wrong else []), *wrong)


def _failed_run_lines(page: SweepPage) -> Iterator[Text]:
    """Yields a line for each run that ended with an error."""
    for run in page.runs:
        if run.reason and run.state not in (_GOOD, "running", "queued"):
            yield Text(one_line(f"{run.name} {run.state}: {run.reason}"), style="yellow")


def _figure_names(page: SweepPage) -> list[str]:
    """Returns the names of figures, held-out scores first."""
    names = dict.fromkeys(name for cell in page.cells for name in cell.figures)
    return sorted(names, key=lambda name: (not name.startswith(HELD_OUT), name != REWARD, name))


def _spread_text(spread: SeedSpread | None) -> str:
    """Returns mean and standard deviation over seeds; `-` without any."""
    if spread is None:
        return "-"
    return f"{spread.mean:.4g}" if spread.deviation is None else f"{spread.mean:.4g} ± {spread.deviation:.2g}"


def _phase_word(sweep: SweepSummary) -> str:
    """Returns whether a sweep is under way, over or cancelled."""
    if sweep.cancelled:
        return "cancelled"
    return "over" if sweep.over else "under way"


def _state_counts(states: Mapping[str, int]) -> str:
    """Returns the number of runs in each state."""
    order: Sequence[str] = sorted(states, key=lambda name: (name == NOT_SUBMITTED, name != _GOOD))
    return ", ".join(f"{states[name]} {name}" for name in order)
