"""`rftd run`: an experiment from file to end, with a temporary daemon if none answers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, data_folder, shared_options
from rftd.daemon.cli.verbs.submit import command as submit

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command("run")
@click.option("-c", "--config", "file", required=True, metavar="FILE", help="The experiment, in YAML.")
@shared_options
@click.pass_context
def command(ctx: click.Context, file: str) -> None:
    """Run the experiment in FILE to its end, as `trinity run` does; exit 1 if it does not complete.

    It is submitted to the daemon that answers. If none does, one is started in the data folder, and stopped at the end.
    """
    settings: Settings = ctx.obj
    with _daemon(settings) as reached:
        ctx.obj = reached
        ctx.invoke(
            submit,
            file=file,
            overrides=(),
            labels=(),
            priority=None,
            wait=True,
            dry_run=False,
            pull=False,
            request_id=None,
        )


@contextmanager
def _daemon(settings: Settings) -> Iterator[Settings]:
    """Yields the settings for reaching the running daemon, or a daemon serving until the block ends."""
    from pathlib import Path

    from rftd.daemon.http.client.host import DaemonHost

    if _has_daemon(settings):
        yield settings
        return
    folder = Path(data_folder(settings)).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if settings.verbosity >= 0:
        say(f"no daemon runs: one is started in {folder}, until the experiment has ended", err=True)
    with DaemonHost(folder, folder / "serve.log"):
        yield replace(settings, data=str(folder))


def _has_daemon(settings: Settings) -> bool:
    """True if a daemon is named by address, or runs as this user."""
    import os

    from rftd.daemon.cli.settings import names_folder
    from rftd.daemon.http.client.address import NoDaemonError, find_address
    from rftd.daemon.trust.user_state import UserState

    if settings.server or os.environ.get("RFTD_SERVER"):
        return True
    living = UserState(os.environ).daemons()
    if not names_folder(settings, os.environ):
        return bool(living)
    try:
        url = find_address(settings, os.environ).url
    except NoDaemonError:
        return False
    return any(daemon.url == url for daemon in living)
