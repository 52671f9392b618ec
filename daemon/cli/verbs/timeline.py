"""`rftd timeline`: the work of an experiment's workers between two moments, and the idle spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import lasting, number, sparkline
from rftd.daemon.cli.output.table import console_of, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument
from rftd.daemon.http.views import timeline
from rftd.daemon.http.views.timeline import MOST_TIMELINE_POINTS, Timeline

_SHOWN_IDLE: Final = 10
"""Maximum number of idle spans listed, the longest ones."""
_COLUMNS: Final = 32
"""Buckets without --points: the width of a curve."""


@click.command("timeline")
@experiment_argument
@click.option("--from", "from_", metavar="TIME", help="Begin; by default the start of the experiment.")
@click.option("--to", metavar="TIME", help="End; by default now, or the end of the experiment.")
@click.option(
    "--points",
    type=click.IntRange(1, MOST_TIMELINE_POINTS),
    default=_COLUMNS,
    show_default=True,
    help="Number of buckets.",
)
@shared_options
@click.pass_obj
def command(settings: Settings, name: str, from_: str | None, to: str | None, points: int) -> None:
    """Show the work of experiment NAME over time: rollouts of each worker, training, and why it stood still.

    TIME is an ISO 8601 date, such as 2026-01-31T08:00Z. BUSY is the number of rollouts under way, or the share of
    training.
    """
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        answer = client.ask(timeline.timeline, name=name, from_=from_, to=to, points=points)
    if emitted(answer.plain(), settings):
        return
    shown = answer.value
    console = console_of(settings)
    headers = ("WORKER", "BUSY", "MEAN")
    console.print(table(headers, list(_rows(shown, points)), right=("MEAN",), width=console.width))
    span_s = (shown.to_ns - shown.from_ns) / 1e9
    say(f"{lasting(span_s)}, {number(shown.bucket_s)} s in a bucket")
    longest = sorted(shown.idle, key=lambda idle: idle.begun_ns - idle.ended_ns)[:_SHOWN_IDLE]
    for idle in sorted(longest, key=lambda idle: idle.begun_ns):
        after_s, lasted_s = (idle.begun_ns - shown.from_ns) / 1e9, (idle.ended_ns - idle.begun_ns) / 1e9
        say(f"no training for {lasting(lasted_s)} after {lasting(after_s)}, before step {idle.step}: {idle.text}")


def _rows(shown: Timeline, points: int) -> Iterator[tuple[str, ...]]:
    """Yields a row for each worker, and one for the training."""
    for worker in shown.workers:
        if worker.busy:
            mean = sum(worker.busy) / len(worker.busy)
            curve = sparkline(worker.busy, width=min(points, _COLUMNS), low=0.0)
            yield f"{worker.role} {worker.slot}", curve, f"{mean:.1f}"
    span_ns = max(1, shown.to_ns - shown.from_ns)
    trained_ns = sum((steps.ended_ns - steps.begun_ns) * steps.busy for steps in shown.steps)
    yield "training", _training(shown, min(points, _COLUMNS)), f"{min(1.0, trained_ns / span_ns):.0%}"


def _training(shown: Timeline, columns: int) -> str:
    """Returns the curve of the share of training."""
    shares = [0.0] * columns
    width_ns = max(1.0, (shown.to_ns - shown.from_ns) / columns)
    for steps in shown.steps:
        for column in range(columns):
            begin_ns = shown.from_ns + column * width_ns
            common_ns = min(steps.ended_ns, begin_ns + width_ns) - max(steps.begun_ns, begin_ns)
            shares[column] += max(0.0, common_ns / width_ns) * steps.busy
    return sparkline(shares, width=columns, low=0.0)
