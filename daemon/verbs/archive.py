"""`rftd archive`: the files of an experiment that has ended into one file, checked, and away from its folder."""

from __future__ import annotations

import click

from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument


@click.command("archive")
@experiment_argument
@click.option("--to", metavar="FILE", type=click.Path(dir_okay=False), help="A new file; else one in --data/archives.")
@click.option("--request-id", metavar="ID", help="Sent again with the same id, the command changes nothing.")
@shared_options
@click.pass_obj
def command(settings: Settings, name: str, to: str | None, request_id: str | None) -> None:
    """Archive experiment NAME: its log, artifacts and checkpoints in one file; its events stay in the log."""
    from rftd.daemon.verbs.keeping import keep, tell
    from rftd.ops.paths import absolute_path

    body = {"to": absolute_path(to)} if to else {}
    tell(settings, keep(settings, "archive", name, body, target="archived", request_id=request_id))
