"""`rftd archive`, `rftd restore`, `rftd rm`: the files of an experiment that has ended; its events stay in the log."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from rftd.daemon.output.data import emitted
from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument
from rftd.daemon.views import commands, experiments
from rftd.daemon.views.commands import Receipt
from rftd.daemon.views.experiments import ENDED
from rftd.daemon.views.route import CommandRoute
from rftd.ops.paths import absolute_path

if TYPE_CHECKING:
    from rftd.daemon.client.client import Client

B = TypeVar("B", bound=msgspec.Struct)

_REQUEST_ID = click.option(
    "--request-id", metavar="ID", help="Idempotency key: repeated with the same ID, a command changes nothing."
)


@click.command("archive")
@experiment_argument
@click.option(
    "--to", metavar="FILE", type=click.Path(dir_okay=False), help="New archive file. Default: one in --data/archives."
)
@_REQUEST_ID
@shared_options
@click.pass_obj
def archive(settings: Settings, name: str, to: str | None, request_id: str | None) -> None:
    """Archive experiment NAME: its log, artifacts and checkpoints go into one file; its events stay in the log."""
    body = commands.To(to=absolute_path(to) if to else "")
    _keep(settings, commands.archive, body, name, target="archived", request_id=request_id)


@click.command("restore")
@experiment_argument
@click.option(
    "--from", "source", metavar="FILE", type=click.Path(dir_okay=False), help="Archive file, if it was moved."
)
@_REQUEST_ID
@shared_options
@click.pass_obj
def restore(settings: Settings, name: str, source: str | None, request_id: str | None) -> None:
    """Restore experiment NAME from its archive: every file is checked before it is put in place."""
    body = commands.From(source=absolute_path(source) if source else "")
    _keep(settings, commands.restore, body, name, target="here", request_id=request_id)


@click.command("rm")
@experiment_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--archive", is_flag=True, help="Archive it first, in --data/archives.")
@click.option("--reason", default="", help="Reason, kept with the event.")
@_REQUEST_ID
@shared_options
@click.pass_context
def rm(ctx: click.Context, name: str, yes: bool, archive: bool, reason: str, request_id: str | None) -> None:
    """Delete the files of experiment NAME: checkpoints, weights, artifacts, logs. `rftd ls --all` still shows it."""
    settings: Settings = ctx.obj
    if not yes:
        # A prompt that nobody reads would hang a script for ever.
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask for confirmation: give --yes", ctx=ctx)
        click.confirm(f"Remove the files of {name}{'' if archive else ' for good'}?", abort=True, err=True)
    body = commands.Remove(reason=reason, archive=archive)
    _keep(settings, commands.remove, body, name, target="removed", request_id=request_id)


def _keep(
    settings: Settings, command: CommandRoute[B, Receipt], body: B, name: str, *, target: str, request_id: str | None
) -> None:
    """Sends a command that may take long, and says what came of it."""
    from rftd.daemon.client.client import Client

    with Client(replace(settings, timeout_s=max(settings.timeout_s, command.timeout_s))) as client:
        done = _kept(client, command, body, name, target=target, request_id=request_id)
    if not emitted(done, settings) and settings.verbosity >= 0:
        already = "already " if done["already"] else ""
        click.echo(f"{done['name']}  {already}{done['files']}  {done['path'] or ''}".rstrip())


def _kept(
    client: Client, command: CommandRoute[B, Receipt], body: B, name: str, *, target: str, request_id: str | None
) -> dict[str, Any]:
    """The answer. An experiment that is in its target state already is no error."""
    from rftd.ops.errors import ConflictError

    try:
        sent = client.send(command, body, name=name, request_id=request_id).value
    # Asking twice is asking once: the state that was wanted is there, so this is no error.
    except ConflictError:
        summary = client.ask(experiments.summary, name=name).value
        if summary.kept != target or summary.state not in ENDED:
            raise
        known = {"name": summary.name, "id": summary.id, "files": target, "path": summary.kept_path}
        return {**known, "already": True, "event": None, "position": None}
    summary = client.ask(experiments.summary, name=sent.id, after=sent.position).value
    done = {"name": summary.name, "id": summary.id, "files": summary.kept, "path": summary.kept_path}
    return {**done, "already": False, "event": sent.event, "position": sent.position}
