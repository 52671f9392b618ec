"""`rftd version`."""

from __future__ import annotations

import click

from rftd.daemon.settings import Settings, shared_options


@click.command("version")
@shared_options
@click.pass_obj
def command(settings: Settings) -> None:
    """Versions of this program and of the daemon."""
    click.echo("rftd")
