"""`rftd events`: an experiment's history, from the log."""

from __future__ import annotations

from typing import Any, Final

import click

from rftd.daemon.output.data import emit, emit_line
from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.arguments import experiment_argument
from rftd.daemon.views import events
from rftd.daemon.views.events import EventView

_WAIT_S: Final = 15.0
_BRIEF_CHARS: Final = 110


@click.command("events")
@experiment_argument
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only this type, or types with this prefix: experiment, weights.published, ...; repeatable.",
)
@click.option("--after", metavar="CURSOR", help="Start where an earlier page ended (its `next`).")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Maximum number of events.",
)
@click.option("--full", is_flag=True, help="Show long lists whole.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events; Ctrl-C ends.")
@shared_options
@click.pass_obj
def command(
    settings: Settings, name: str, types: tuple[str, ...], after: str | None, limit: int, full: bool, follow: bool
) -> None:
    """Show the events of experiment NAME, merged by time; token arrays are shown by their shape."""
    from rftd.daemon.client.client import Client

    items: list[Any] = []
    with Client(settings) as client:
        left = limit
        more = True
        while more and (left > 0 or follow):
            answer = client.ask(
                events.events,
                name=name,
                type=list(types) or None,
                after=after,
                # Pages of 500: an answer is held in memory by daemon and client, whatever --limit says.
                limit=500 if follow else min(left, 500),
                full=full or None,
                wait_s=_WAIT_S if follow else 0.0,
            )
            page = answer.value
            after = page.next
            left = left - len(page.items)
            more = page.more or follow
            for item, event in zip(answer.plain()["items"], page.items, strict=True):
                if settings.output == "jsonl" or (settings.machine_readable and follow):
                    emit_line(item)
                elif settings.machine_readable:
                    items.append(item)
                else:
                    click.echo(_text(event))
    if settings.output in ("json", "yaml") and not follow:
        emit({"items": items, "next": after, "more": more}, settings)
    elif more and settings.verbosity >= 0:
        click.echo(f"there are more: rftd events {name} --after {after}", err=True)


def _text(event: EventView) -> str:
    brief = " ".join(f"{key}={value}" for key, value in event.payload.items() if isinstance(value, str | int | float))
    cut = brief if len(brief) <= _BRIEF_CHARS else brief[: _BRIEF_CHARS - 3] + "..."
    return f"{event.time}  {event.type:<21}  {event.position:<25}  {cut}".rstrip()
