"""What each role waits for, one line for each."""

from __future__ import annotations

from typing import Final

import click
from rich.text import Text

from rftd.daemon.client.replies import Wait, Why
from rftd.daemon.output.quantity import age
from rftd.daemon.output.table import console_of, table
from rftd.daemon.settings import Settings
from rftd.ops.clock import Clock, SystemClock

_STYLES: Final = {0: "bold red", 1: "yellow", 2: "green", 3: "dim"}


def render(why: Why, settings: Settings) -> None:
    """Prints the answer."""
    live = "" if why.live else "; no daemon answers, this is what the log says"
    click.echo(f"{why.name} ({why.experiment}) is {why.status}{live}")
    clock = SystemClock()
    headers = ("ROLE", "STATE", "FOR", "WHAT", "NEXT")
    console_of(settings).print(table(headers, [_row(wait, clock) for wait in why.waits], right=frozenset({"FOR"})))


def _row(wait: Wait, clock: Clock) -> tuple[str | Text, ...]:
    role = wait.role if wait.slot is None else f"{wait.role} {wait.slot}"
    what = f"waits for {wait.waiting_for}" if wait.level <= 1 and wait.role != "log" else wait.waiting_for
    after = f"{wait.on_whom}: {wait.unblock}" if wait.on_whom and wait.unblock else wait.on_whom or wait.unblock
    return role, Text(wait.state, style=_STYLES.get(wait.level, "")), age(wait.since_at, clock), what, after
