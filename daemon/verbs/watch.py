"""`rftd watch`: an experiment's page, live, until it ends. Ctrl-C lets go of it and stops nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument

if TYPE_CHECKING:
    from rftd.daemon.client.client import Answer, Client
    from rftd.daemon.views.experiments import ExperimentPage


@click.command("watch")
@experiment_argument
@shared_options
@click.pass_context
def command(ctx: click.Context, name: str) -> None:
    """Follow experiment NAME until it ends; exit 1 if it does not complete. Ctrl-C detaches."""
    from rftd.daemon.client.client import Client

    with Client(ctx.obj) as client:
        ctx.exit(follow_to_end(client, name, ctx.obj))


def follow_to_end(
    client: Client, name: str, settings: Settings, *, after: str | None = None, handle: str | None = None
) -> int:
    """Shows the experiment until it ended; the exit status that its end means."""
    from rftd.daemon.client.client import follow

    last: ExperimentPage | None = None
    try:
        pages = follow(client, name, after=after, patience_s=settings.timeout_s)
        for page in _shown(pages, settings):
            last = page
    except KeyboardInterrupt:
        click.echo(f"\ndetached; nothing was stopped. Again: rftd watch {handle or name}", err=True)
        return 130
    assert last is not None
    summary = last.experiment.summary
    if not settings.machine_readable and summary.state != "completed":
        reason = ": ".join(part for part in (summary.code, summary.reason) if part)
        click.echo(f"{summary.name} {summary.state}" + (f"  {reason}" if reason else ""), err=True)
    return 0 if summary.state == "completed" else 1


def _shown(pages: Iterator[Answer[ExperimentPage]], settings: Settings) -> Iterator[ExperimentPage]:
    """Each page once it is on the screen: as JSON lines, as a live page, or as a line where no terminal is."""
    if settings.machine_readable:
        from rftd.daemon.output.data import emit_line

        for answer in pages:
            emit_line(answer.plain())
            yield answer.value
        return
    from rich.live import Live

    from rftd.daemon.output.table import console_of
    from rftd.daemon.verbs.get import render
    from rftd.ops.clock import SystemClock

    console = console_of(settings)
    clock = SystemClock()
    if not console.is_terminal:
        for answer in pages:
            click.echo(_brief(answer.value))
            yield answer.value
        return
    # Refreshed by pages only: rich's own thread would draw the same page four times a second.
    with Live(console=console, auto_refresh=False) as live:
        for answer in pages:
            live.update(render(answer.value, clock), refresh=True)
            yield answer.value


def _brief(page: ExperimentPage) -> str:
    from rftd.daemon.output.quantity import number
    from rftd.daemon.output.sparkline import sparkline
    from rftd.ops.clock import iso

    summary = page.experiment.summary
    curve = sparkline([point.reward_mean for point in page.reward_curve], width=16)
    return (
        f"{iso(summary.state_ns)}  {summary.name}  {summary.state:<9}  {summary.stage or '-'}"
        f"  step {summary.step}/{summary.total_steps}  reward {number(summary.reward_mean)}  {curve}".rstrip()
    )
