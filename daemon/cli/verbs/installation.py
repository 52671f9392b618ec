"""`rftd version`, `rftd completion`: this installation's versions, and its completion in a shell."""

from __future__ import annotations

import platform
from typing import Any

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options


@click.command("version")
@shared_options
@click.pass_obj
def version(settings: Settings) -> None:
    """Show the versions of this program and of the daemon, if one answers."""
    from rftd.ops.releases import release_of

    daemon, url, reason = _daemon_versions(settings)
    mine = {"version": release_of("rftd"), "python": platform.python_version()}
    if emitted({"client": mine, "daemon": daemon, "server": url, "reason": reason}, settings):
        return
    say(f"rftd {mine['version']} (python {mine['python']})")
    if daemon is None:
        say(f"daemon: {reason}")
    else:
        say(f"daemon {daemon['version']} (python {daemon['python']}) at {url}")


def _daemon_versions(settings: Settings) -> tuple[Any, str | None, str]:
    """Returns the daemon's versions, its address, and the reason if there are none."""
    from dataclasses import replace

    from rftd.daemon.http.client.address import NoDaemonError
    from rftd.daemon.http.client.client import Client, nobody_listens
    from rftd.daemon.http.views.version import version as read_version
    from rftd.ops.errors import RftdError

    try:
        client = Client(replace(settings, timeout_s=min(settings.answer_timeout_s, 2.0)))
    except NoDaemonError as error:
        return None, None, error.what
    with client:
        try:
            return client.ask(read_version).plain(), client.url, ""
        except NoDaemonError as error:
            return None, None, error.what
        except RftdError as error:
            reason = f"none answers at {client.url}" if nobody_listens(error) else f"{error.what}, at {client.url}"
            return None, client.url, reason


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL: eval "$(rftd completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    click.echo(kind(root, {}, "rftd", "_RFTD_COMPLETE").source())
