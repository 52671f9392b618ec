"""`rftd get`: one page about one experiment."""

from __future__ import annotations

import click

from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument


@click.command("get")
@experiment_argument
@shared_options
@click.pass_obj
def command(settings: Settings, name: str) -> None:
    """One page about experiment NAME (or name@2, its id, or a unique beginning of its id)."""
    from rftd.daemon.client.client import Client

    with Client(settings) as client:
        answer = client.experiment(name)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(answer.plain(), settings)
        return
    from rftd.daemon.output.page import render
    from rftd.daemon.output.table import console_of
    from rftd.ops.clock import SystemClock

    console_of(settings).print(render(answer.value, SystemClock()))
