"""`rftd version`: of this program and of the daemon."""

from __future__ import annotations

import platform

import click

from rftd.daemon.output.data import emitted
from rftd.daemon.settings import Settings, shared_options


@click.command("version")
@shared_options
@click.pass_obj
def command(settings: Settings) -> None:
    """Versions of this program and of the daemon, if one answers."""
    from contextlib import suppress
    from dataclasses import replace

    from rftd.daemon.client.client import Client
    from rftd.daemon.installed import installed_version
    from rftd.daemon.views.version import version as read_version
    from rftd.ops.errors import RftdError

    daemon = None
    with Client(replace(settings, timeout_s=min(settings.timeout_s, 2.0))) as client:
        url = client.url
        with suppress(RftdError):
            daemon = client.ask(read_version).plain()
    mine = {"version": installed_version(), "python": platform.python_version()}
    if emitted({"client": mine, "daemon": daemon, "server": url}, settings):
        return
    click.echo(f"rftd {mine['version']} (python {mine['python']})")
    if daemon is None:
        click.echo(f"daemon: none answers at {url}")
    else:
        click.echo(f"daemon {daemon['version']} (python {daemon['python']}) at {url}")
