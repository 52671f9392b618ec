"""`rftd rm`: the files of an experiment that has ended, away; its events stay, its name is free."""

from __future__ import annotations

import click

from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument


@click.command("rm")
@experiment_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--archive", is_flag=True, help="Archive it first, below --data/archives.")
@click.option("--reason", default="", help="Kept with the event.")
@click.option("--request-id", metavar="ID", help="Sent again with the same id, the command changes nothing.")
@shared_options
@click.pass_context
def command(ctx: click.Context, name: str, yes: bool, archive: bool, reason: str, request_id: str | None) -> None:
    """Remove experiment NAME: its checkpoints, weights, artifacts and logs; `rftd ls --all` still shows it."""
    import sys

    from rftd.daemon.verbs.keeping import keep, tell

    settings: Settings = ctx.obj
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: give --yes", ctx=ctx)
        click.confirm(f"Remove the files of {name}{'' if archive else ' for good'}?", abort=True, err=True)
    body = {"reason": reason, "archive": archive}
    tell(settings, keep(settings, "remove", name, body, target="removed", request_id=request_id))
