"""`rftd ls`: the experiments."""

from __future__ import annotations

import click

from rftd.daemon.settings import Settings, shared_options

STATES = ("submitted", "queued", "running", "paused", "completed", "failed", "cancelled", "rejected")


@click.command("ls")
@click.option("--state", "states", metavar="STATE[,STATE]", help=f"Only those in a state: {', '.join(STATES)}.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Most lines.")
@shared_options
@click.pass_obj
def command(settings: Settings, states: str | None, limit: int) -> None:
    """List the experiments, newest first."""
    from rftd.daemon.client.client import Client

    chosen = [state.strip() for state in states.split(",")] if states else []
    if wrong := next((state for state in chosen if state not in STATES), None):
        raise click.BadParameter(f"no state {wrong!r}; use one of {', '.join(STATES)}", param_hint="--state")
    with Client(settings) as client:
        answer = client.experiments(state=chosen or None, limit=limit)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(answer.plain(), settings)
        return
    from rftd.daemon.output.quantity import age, number
    from rftd.daemon.output.table import console_of, state, table
    from rftd.ops.clock import SystemClock

    clock = SystemClock()
    rows = [
        (
            row.name,
            state(row.state),
            row.stage or "-",
            f"{row.step}/{row.total_steps}",
            number(row.reward_mean),
            "-" if row.staleness_p95 is None else str(row.staleness_p95),
            age(row.submitted_at, clock),
            row.id,
        )
        for row in answer.value.items
    ]
    if not rows:
        click.echo("no experiments" + (" in these states" if chosen else "; start with `rftd submit FILE`"), err=True)
        return
    headers = ("NAME", "STATE", "STAGE", "STEP", "REWARD", "STALE-P95", "AGE", "ID")
    console_of(settings).print(table(headers, rows, right=frozenset({"STEP", "REWARD", "STALE-P95", "AGE"})))
    if answer.value.next is not None:
        click.echo(f"more than {limit}; give --limit", err=True)
