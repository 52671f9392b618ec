"""`rftd experiences export`: rollouts with their texts as a Parquet file, readable as the taskset of another run."""

from __future__ import annotations

from typing import Any, Final, get_args

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, options_of_a_file
from rftd.daemon.cli.verbs.arguments import bounds_of, experiment_argument, steps_named
from rftd.daemon.http.views.experiences import Order, State

_BATCH_ROLLOUTS: Final = 256
"""Number of rollouts whose texts are in memory at once."""


@click.command("export")
@experiment_argument
@click.option("--step", metavar="A:B", help="Planned for the steps A to B; also A, A: or :B.")
@click.option("--reward", metavar="'>0.8'", help="Only rewards matching this comparison with >, >=, <, <= or =.")
@click.option("--state", type=click.Choice(get_args(State)), help="Only this state.")
@click.option("--order", type=click.Choice(get_args(Order)), default="oldest", show_default=True)
@click.option("-n", "--limit", type=click.IntRange(1), help="Maximum number of rollouts. Default: all.")
@options_of_a_file
@click.pass_obj
def export(
    settings: Settings,
    name: str,
    step: str | None,
    reward: str | None,
    state: str | None,
    order: Order,
    limit: int | None,
    file: str,
) -> None:
    """Write rollouts of experiment NAME to a new Parquet FILE: texts, reward and its parts, weight versions.

    The columns prompt, messages, truth and response can be read by the tasksets of another experiment.
    """
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.client.rollout_file import RolloutFile

    first, last = steps_named(step)
    low, high = bounds_of(reward, "--reward")
    filters: dict[str, Any] = {"step": (first, last), "min_reward": low, "max_reward": high, "state": state}
    with Client(settings) as client:
        run = client.run(name)  # first: a daemon that is away and a name of nobody are told before an existing file
        with RolloutFile(file) as written:
            for rollout in run.each_rollout(order=order, limit=limit, batch=_BATCH_ROLLOUTS, **filters):
                written.add(rollout)
    if not emitted({"file": file, "rollouts": written.count}, settings) and settings.verbosity >= 0:
        say(f"wrote {written.count:,} rollouts to {file}")
        for note, count in written.notes.items():
            say(f"{count:,} without text: {note}", err=True)
