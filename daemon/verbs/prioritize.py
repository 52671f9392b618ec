"""`rftd prioritize`: which of the experiments that wait goes first; asking twice is asking once."""

from __future__ import annotations

import click

from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument


@click.command("prioritize", context_settings={"ignore_unknown_options": True})
@experiment_argument
@click.argument("priority", type=click.IntRange(-1_000_000, 1_000_000))
@click.option("--reason", default="", help="Kept with the event.")
@click.option("--request-id", metavar="ID", help="Sent again with the same id, the command changes nothing.")
@shared_options
@click.pass_obj
def command(settings: Settings, name: str, priority: int, reason: str, request_id: str | None) -> None:
    """Set the PRIORITY of experiment NAME, 0 by default: of those that wait for their turn, the highest goes first.

    What is under way goes on; its priority counts when a daemon with fewer slots takes it up again.
    """
    from rftd.daemon.client.client import Client
    from rftd.daemon.verbs.submit import new_id

    with Client(settings) as client:
        sent = client.prioritize(name, priority, reason=reason, request_id=request_id or new_id()).value
        summary = client.summary(sent.id, after=sent.position).value
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(
            {
                "name": summary.name,
                "id": sent.id,
                "priority": summary.priority,
                "state": summary.state,
                "queue_position": summary.queue_position,
                "event": sent.event,
                "position": sent.position,
            },
            settings,
        )
    elif settings.verbosity >= 0:
        place = f", number {summary.queue_position} in the queue" if summary.queue_position else ""
        click.echo(f"{summary.name}  {summary.state}  priority {summary.priority}{place}  {sent.event}")
