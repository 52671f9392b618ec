"""`rftd why`: the work or wait of each role, most serious first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import age, short
from rftd.daemon.cli.output.table import console_of, table
from rftd.daemon.cli.output.terminal import fitted, one_line, say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument
from rftd.daemon.http.views import experiments as view
from rftd.daemon.run.why.wait import Wait, next_of, what_of
from rftd.ops.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog

_STYLES_BY_LEVEL: Final = {0: "bold red", 1: "yellow", 2: "green", 3: "dim"}
"""Style of a wait's state by the wait's level; 0 is the most serious."""
_MIN_TABLE_COLUMNS: Final = 120
"""Minimum width of the terminal for five readable columns side by side."""
_INDENT_COLUMNS: Final = 4
"""Indentation of texts below a role's line on a narrower terminal."""


@click.command("why")
@experiment_argument
@log_option
@shared_options
@click.pass_obj
def command(settings: Settings, name: str, log_at: LogUrl | None) -> None:
    """Show what each role of experiment NAME does or waits for, since when, and what unblocks it; worst first.

    Without a daemon, the answer comes from the log that --data or --kafka names.
    """
    from rftd.daemon.http.client.client import asked_or_read

    async def read(log: EventLog) -> view.WhyNow:
        from rftd.daemon.run.why.answer import why_offline

        return view.why_now(await why_offline(log, name, clock=SystemClock()), None)

    answer, plain = asked_or_read(settings, log_at, lambda client: client.ask(view.why, name=name), read)
    if not emitted(plain, settings):
        _print_answer(answer, settings)


def _print_answer(why: view.WhyNow, settings: Settings) -> None:
    """Prints a line for each role; on a narrow terminal, the texts are below the line."""
    live = "" if why.live else "; no daemon answers: this is the state in the log"
    say(f"{why.name} ({short(why.experiment)}) is {why.status}{live}")
    if why.moment is not None:
        now = why.moment
        figures = [text for text in (now.progress, now.pace_words, now.work_words) if text is not None]
        for line in dict.fromkeys((now.sentence, *figures, *now.memory)):
            if line != why.status:  # stands in the line above
                say(one_line(line))
    clock = SystemClock()
    headers = ("ROLE", "STATE", "FOR", "WHAT", "NEXT")
    rows = [_table_row(wait, clock) for wait in why.waits]
    console = console_of(settings)
    if console.width >= _MIN_TABLE_COLUMNS:
        console.print(table(headers, rows, right=("FOR",), whole=("STATE",)))
        return
    for role, status, since, *texts in rows:
        console.print(Text.assemble(role, "  ", status, f"  for {since}"))
        for text in filter(None, texts):
            for line in fitted(str(text), console.width - _INDENT_COLUMNS, indent=0).split("\n"):
                console.print(" " * _INDENT_COLUMNS + line, markup=False)


def _table_row(wait: Wait, clock: Clock) -> tuple[str | Text, ...]:
    """Returns a wait as a row of the table: role, state, duration, text of the wait, and next event."""
    role = wait.role if wait.slot is None else f"{wait.role} {wait.slot}"
    status = Text(wait.state, style=_STYLES_BY_LEVEL.get(wait.level, ""))
    return role, status, age(wait.since_ns, clock), one_line(what_of(wait)), one_line(next_of(wait))
