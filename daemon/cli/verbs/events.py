"""`rftd events`: an experiment's history, from the log."""

from __future__ import annotations

import shlex
from typing import Any, Final

import click

from rftd.daemon.cli.output.data import emit, emit_line
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument
from rftd.daemon.http.views import events
from rftd.daemon.http.views.event_page import EventView

_WAIT_S: Final = 15.0
"""Maximum seconds for which the daemon holds a request for new events."""
_BRIEF_CHARS: Final = 110
"""Maximum number of characters of an event's fields in a line."""
_NEWEST: Final = 100
"""Number of events shown by default."""
_ENDLESS: Final = 1 << 53
"""Number larger than any count of events, standing for no limit."""
_INDENT: Final = 4
"""Number of blanks before the continuation of a long line."""


@click.command("events")
@experiment_argument
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only this type, or types with this prefix: experiment, weights.published, ...; repeatable.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1_000_000),
    help=f"Number of events: the newest ones ({events.MOST_NEWEST} at most), or the first with --all or --cursor. "
    f"Default: {_NEWEST}, or all of those.",
)
@click.option("--all", "everything", is_flag=True, help="Begin with the first event.")
@click.option("--cursor", metavar="CURSOR", help="Begin where an earlier page ended (its `next`).")
@click.option("--full", is_flag=True, help="Show long lists in full.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events; Ctrl-C ends.")
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    name: str,
    types: tuple[str, ...],
    limit: int | None,
    everything: bool,
    cursor: str | None,
    full: bool,
    follow: bool,
) -> None:
    """Show the newest events of experiment NAME in order of time; token arrays are shown by their shape."""
    from rftd.daemon.http.client.client import Client

    if everything and cursor:
        raise click.UsageError("--all begins with the first event, and --cursor where a page ended: give one of them")
    forward = everything or cursor is not None
    newest = None if forward else (limit or _NEWEST)
    if newest is not None and newest > events.MOST_NEWEST:
        raise click.UsageError(f"-n shows the newest {events.MOST_NEWEST} at most: for all of them give --all")
    # The requested number of newest events is the limit: afterwards, others may have appended any number of records.
    remaining = limit if forward and limit else _ENDLESS if follow or newest is None else newest
    shown = 0
    more = True
    event_objects: list[Any] = []
    with Client(settings) as client:
        while more and (remaining > 0 or follow):
            answer = client.ask(
                events.events,
                name=name,
                type=list(types) or None,
                cursor=cursor,
                newest=newest,
                # Pages of 500: an answer is held in memory by daemon and client, whatever --limit says.
                limit=500 if follow else min(remaining, 500),
                full=full or None,
                # Existing events come at once; then the daemon is asked to wait for more.
                wait_s=_WAIT_S if follow and newest is None else 0.0,
            )
            newest = None
            page = answer.value
            cursor = page.next
            remaining -= len(page.items)
            shown += len(page.items)
            more = page.more or follow
            for event_object, event in zip(answer.plain()["items"], page.items, strict=True):
                if settings.output == "jsonl" or (settings.machine_readable and follow):
                    emit_line(event_object)
                elif settings.machine_readable:
                    event_objects.append(event_object)
                else:
                    say(_event_line(event), indent=_INDENT)
    if settings.output in ("json", "yaml") and not follow:
        emit({"items": event_objects, "next": cursor, "more": more}, settings)
    elif not (shown or forward or follow) and settings.verbosity >= 0:
        say(f"none among the newest records; from the first on: rftd events {shlex.quote(name)} --all", err=True)
    elif more and settings.verbosity >= 0:
        say(f"next page: rftd events {shlex.quote(name)} --cursor {cursor}", err=True)


def _event_line(event: EventView) -> str:
    """Returns an event as a line: time, type, position, and the fields of plain values."""
    brief = " ".join(
        f"{key}={field_content}"
        for key, field_content in event.payload.items()
        if isinstance(field_content, str | int | float)
    )
    cut = brief if len(brief) <= _BRIEF_CHARS else brief[: _BRIEF_CHARS - 3] + "..."
    return f"{event.time}  {event.type:<21}  {event.position:<25}  {cut}".rstrip()
