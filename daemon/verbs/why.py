"""`rftd why`: each role's work or wait, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from rftd.daemon.log_option import log_option
from rftd.daemon.output.data import emitted
from rftd.daemon.output.quantity import age
from rftd.daemon.output.table import console_of, table
from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.arguments import experiment_argument
from rftd.daemon.views import experiments as view
from rftd.daemon.why.wait import Wait, Why
from rftd.ops.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rftd.streams.backends.backend import LogUrl
    from rftd.streams.log import EventLog

_STYLES: Final = {0: "bold red", 1: "yellow", 2: "green", 3: "dim"}
"""Styles by a wait's level."""


@click.command("why")
@experiment_argument
@log_option
@shared_options
@click.pass_obj
def command(settings: Settings, name: str, log_at: LogUrl | None) -> None:
    """Show what each role of experiment NAME does or waits for, since when, and what unblocks it; worst first.

    Without a daemon, the answer comes from the log that --data or --kafka names.
    """
    from rftd.daemon.client.client import asked_or_read

    async def read(log: EventLog) -> Why:
        from rftd.daemon.why.answer import why_offline

        return await why_offline(log, name, clock=SystemClock())

    value, plain = asked_or_read(settings, log_at, lambda client: client.ask(view.why, name=name), read)
    if not emitted(plain, settings):
        _show(value, settings)


def _show(why: Why, settings: Settings) -> None:
    """Prints one line for each role."""
    live = "" if why.live else "; no daemon answers, this is what the log says"
    click.echo(f"{why.name} ({why.experiment}) is {why.status}{live}")
    clock = SystemClock()
    headers = ("ROLE", "STATE", "FOR", "WHAT", "NEXT")
    console_of(settings).print(table(headers, [_row(wait, clock) for wait in why.waits], right=frozenset({"FOR"})))


def _row(wait: Wait, clock: Clock) -> tuple[str | Text, ...]:
    role = wait.role if wait.slot is None else f"{wait.role} {wait.slot}"
    what = f"waits for {wait.waiting_for}" if wait.level <= 1 and wait.role != "log" else wait.waiting_for
    after = f"{wait.on_whom}: {wait.unblock}" if wait.on_whom and wait.unblock else wait.on_whom or wait.unblock
    return role, Text(wait.state, style=_STYLES.get(wait.level, "")), age(wait.since_ns, clock), what, after
