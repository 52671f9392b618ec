"""`rftd restore`: archived files back to their places."""

from __future__ import annotations

import click

from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument


@click.command("restore")
@experiment_argument
@click.option("--from", "source", metavar="FILE", type=click.Path(dir_okay=False), help="The archive, if it was moved.")
@click.option("--request-id", metavar="ID", help="Sent again with the same id, the command changes nothing.")
@shared_options
@click.pass_obj
def command(settings: Settings, name: str, source: str | None, request_id: str | None) -> None:
    """Restore experiment NAME from its archive: every file is checked before it is in its place."""
    from rftd.daemon.verbs.keeping import keep, tell
    from rftd.ops.paths import absolute_path

    body = {"source": absolute_path(source)} if source else {}
    tell(settings, keep(settings, "restore", name, body, target="here", request_id=request_id))
