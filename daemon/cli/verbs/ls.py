"""`rftd ls`: the experiments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import plain, say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import page_options

if TYPE_CHECKING:
    from rich.text import Text

    from rftd.daemon.http.views.refusals import RefusedRequest
    from rftd.storage.queries.experiments import ExperimentSummary

STATES = ("submitted", "queued", "running", "paused", "completed", "failed", "cancelled", "rejected")
"""States of experiments by which `--state` filters."""

ORDERS: Final = ("newest", "oldest", "name", "project", "state", "reward", "-reward")
"""Orders of the list of experiments, as chosen by `--order`."""
_INDENT: Final = 4
"""Number of blanks before the continuation of a long line about a refused request."""
_LINE_FEEDS: Final = str.maketrans({"\n": "\\n", "\r": "\\r"})
"""Replacements keeping a foreign text on one line."""


@click.command("ls")
@click.option("--state", "states", metavar="STATE[,STATE]", help=f"Only these states: {', '.join(STATES)}.")
@click.option("--label", "labels", multiple=True, metavar="KEY[=VALUE]", help="Only with this label; repeatable.")
@click.option("--project", help="Only this project.")
@click.option("--words", metavar="TEXT", help="Only names with each of these words, in any case.")
@click.option("--signal", type=click.Choice(("lost", "present")), help="Only without, or with, a learning signal.")
@click.option("--order", type=click.Choice(ORDERS), default="newest", show_default=True)
@page_options
@click.option("--all", "removed", is_flag=True, help="Include removed experiments.")
@click.option("--refused", is_flag=True, help="List refused requests of external producers instead.")
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    states: str | None,
    labels: tuple[str, ...],
    project: str | None,
    words: str | None,
    signal: str | None,
    order: str,
    limit: int,
    cursor: str | None,
    removed: bool,
    refused: bool,
) -> None:
    """List the experiments, newest first; a fork is shown below its parent."""
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.views import experiments

    if refused:
        if states or labels or removed or project or words or signal or cursor:
            raise click.UsageError("--refused lists requests, of which only --limit holds")
        _print_refused(settings, limit)
        return
    chosen = [state.strip() for state in states.split(",")] if states else []
    if wrong := next((state for state in chosen if state not in STATES), None):
        raise click.BadParameter(f"no state {wrong!r}; use one of {', '.join(STATES)}", param_hint="--state")
    with Client(settings) as client:
        answer = client.ask(
            experiments.listed,
            state=chosen or None,
            label=list(labels) or None,
            project=project,
            words=words,
            signal=signal,
            removed=removed or None,
            order=order,
            limit=limit,
            cursor=cursor,
        )
    if emitted(answer.plain(), settings):
        return
    if not answer.value.items:
        filters = [*(["in these states"] if chosen else []), *(["with these labels"] if labels else [])]
        say(" ".join(["no experiments", *filters]) + "; start with `rftd submit FILE`" * (not filters), err=True)
        return
    _print_table(answer.value.items, settings)
    if answer.value.next is not None:
        say(f"next page: --cursor {answer.value.next}", err=True)


def _print_table(items: Sequence[ExperimentSummary], settings: Settings) -> None:
    """Prints the experiments as a table."""
    from rftd.daemon.cli.output.quantity import age, number, short, shorts
    from rftd.daemon.cli.output.table import console_of, table
    from rftd.ops.clock import SystemClock

    clock = SystemClock()
    names = {row.id: row.name for row in items}
    ids = dict(zip(names, shorts(list(names)), strict=True))
    rows: list[tuple[str | Text, ...]] = [
        (
            f"{'  ' * (depth - 1)}└ {row.name}" if depth else row.name,
            _state_words(row),
            row.stage or "-",
            f"{row.step}/{row.total_steps}",
            number(row.reward_mean),
            "-" if row.staleness_p95 is None else str(row.staleness_p95),
            age(row.submitted_ns, clock),
            ids[row.id],
            _turn_words(row),
            ", ".join(f"{key}={label}" for key, label in sorted(row.labels.items())),
            "" if row.parent is None else f"step {row.forked_step} of {names.get(row.parent, short(row.parent))}",
        )
        for depth, row in tree_of(items)
    ]
    headers = ("NAME", "STATE", "STAGE", "STEP", "REWARD", "STALE-P95", "AGE", "ID", "TURN", "LABELS", "FORKED-AT")
    shown = [
        number
        for number, header in enumerate(headers)
        if header not in ("TURN", "LABELS", "FORKED-AT") or any(str(row[number]) for row in rows)
    ]
    console = console_of(settings)
    listing = table(
        [headers[number] for number in shown],
        [tuple(row[number] for number in shown) for row in rows],
        right=("STEP", "REWARD", "STALE-P95", "AGE"),
        whole=("ID", "STATE"),
        width=console.width,
        first_to_go=("STALE-P95", "STAGE", "AGE", "REWARD", "LABELS"),
    )
    console.print(listing)


def _print_refused(settings: Settings, limit: int) -> None:
    """Prints each refused request, with the reason for its author below."""
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.views import refusals

    with Client(settings) as client:
        answer = client.ask(refusals.refused, limit=limit)
    if emitted(answer.plain(), settings):
        return
    if not answer.value.items:
        say("no request by a record was refused", err=True)
    for line in refusal_lines(answer.value.items):
        say(line, indent=_INDENT)


def refusal_lines(refused: Sequence[RefusedRequest]) -> Iterator[str]:
    """Yields a line for each refusal, with its reason below. Foreign text cannot look like a line of rftd."""
    from rftd.ops.clock import iso

    for refusal in refused:
        request_text = f"{refusal.type or '(no type)'}  source={refusal.source} id={refusal.id}  {refusal.place}"
        yield plain(f"{iso(refusal.refused_ns)}  {request_text.translate(_LINE_FEEDS)}")
        # A reason has one line per error.
        yield from (f"    {plain(line)}" for line in f"{refusal.code}: {refusal.reason}".splitlines())


def _state_words(row: ExperimentSummary) -> Text:
    """Returns the experiment's outcome, and the state of moved or removed files."""
    from rich.text import Text

    from rftd.daemon.cli.output.table import state

    outcome = state(row.state)
    return outcome if row.kept == "here" else Text.assemble(outcome, f", {row.kept}")


def _turn_words(row: ExperimentSummary) -> str:
    """Returns the place in the queue; for experiments not queued, only a non-default priority."""
    priority = f"priority {row.priority}" if row.priority else ""
    if row.queue_position is None:
        return priority if row.state in ("submitted", "running", "paused") else ""
    return f"{row.queue_position}, {priority}" if priority else str(row.queue_position)


def tree_of(rows: Sequence[ExperimentSummary]) -> Iterator[tuple[int, ExperimentSummary]]:
    """Yields the rows in order, each with a depth; forks follow their parents, if listed."""
    listed_ids = {row.id for row in rows}
    forks: dict[str | None, list[ExperimentSummary]] = {}
    for row in rows:
        forks.setdefault(row.parent if row.parent in listed_ids else None, []).append(row)
    # An explicit stack instead of recursion: forks of forks may be arbitrarily deep.
    waiting = [(0, row) for row in reversed(forks.get(None, []))]
    while waiting:
        depth, row = waiting.pop()
        yield depth, row
        waiting += [(depth + 1, fork) for fork in reversed(forks.get(row.id, []))]
