"""`rftd fork`: a new experiment that shares another's history up to a step, and goes on from there with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument

if TYPE_CHECKING:
    from rftd.daemon.client.client import Client


@click.command("fork")
@experiment_argument
@click.option(
    "--at-step", type=click.IntRange(min=0), required=True, metavar="N", help="Weight version to continue from."
)
@click.option("-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one field; repeatable.")
@click.option("--name", "fork_name", metavar="NAME", help="Name of the fork. Default: PARENT-fork-N.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label the fork; repeatable.")
@click.option("--wait", is_flag=True, help="Follow the fork to its end; exit 1 if it does not complete.")
@click.option(
    "--request-id", metavar="ID", help="Idempotency key: repeated with the same ID, a command changes nothing."
)
@shared_options
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    at_step: int,
    overrides: tuple[str, ...],
    fork_name: str | None,
    labels: tuple[str, ...],
    wait: bool,
    request_id: str | None,
) -> None:
    """Start a new experiment from step N of experiment NAME, with its configuration and the given changes."""
    from rftd.daemon.client.client import Client
    from rftd.daemon.verbs.submit import pair, taken_in
    from rftd.daemon.views import commands

    settings: Settings = ctx.obj
    named = dict(pair(label) for label in labels)
    with Client(settings) as client:
        body = commands.Fork(at_step=at_step, set=_portable(client, name, overrides), name=fork_name, labels=named)
        accepted = client.send(commands.fork, body, name=name, request_id=request_id)
        receipt = accepted.value
        if settings.verbosity >= 0:
            for warning in receipt.warnings:
                click.echo(f"warning: {warning}", err=True)
        what = f"shares steps 1 to {receipt.at_step} of {receipt.parent}"
        ctx.exit(taken_in(client, accepted, settings, what, wait=wait))


def _portable(client: Client, name: str, overrides: tuple[str, ...]) -> list[str]:
    """The overrides as the daemon reads them: paths absolute, `${...}` resolved here."""
    if not overrides:
        return []
    from rftd.daemon.config.loading import portable_overrides
    from rftd.daemon.views import experiments

    # The parent's configuration decides how an override is read: which fields are paths, and which of them are
    # relative.
    config = client.ask(experiments.one, name=name).value.experiment.config
    return portable_overrides(config, overrides)
