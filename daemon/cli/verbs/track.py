"""`rftd track add`: a past or running experiment of the log, written once more by a tracker, by this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options

if TYPE_CHECKING:
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog

_KINDS: Final = ("tensorboard", "wandb", "mlflow", "swanlab", "trackio", "jsonl", "console")
"""Kinds of trackers that can write a past run."""


@click.group("track")
def track() -> None:
    """Send experiments to trackers: TensorBoard, Weights & Biases, MLflow, SwanLab, trackio, JSON Lines."""


@track.command("add")
@click.argument("name")
@click.argument("kind", type=click.Choice(_KINDS))
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="Argument of the tracker: uri=http://...")
@click.option("--single-run", is_flag=True, help="One run, in place of NAME_explorer and NAME_trainer.")
@click.option(
    "--samples",
    type=click.IntRange(0, 64),
    default=0,
    help="Maximum number of rows in the tables of rollouts and of evaluation answers. Default: no tables.",
)
@click.option("--into", type=click.Path(), metavar="FOLDER", help="Folder for files and places. Default: the job's.")
@log_option
@shared_options
@click.pass_obj
def add(
    settings: Settings,
    /,
    name: str,
    kind: str,
    arguments: tuple[str, ...],
    single_run: bool,
    samples: int,
    into: str | None,
    log_at: LogUrl | None,
) -> None:
    """Write all of experiment NAME so far by a tracker, from this process and with its variables.

    What the tracker has already is not written again. An experiment under way is followed by the daemon if its file
    has the tracker as monitor_type.
    """
    import asyncio
    import os
    from pathlib import Path

    from rftd.daemon.run.registry import find_entry
    from rftd.daemon.serve.log_source import read_here
    from rftd.ops.clock import SystemClock
    from rftd.ops.logs import logger
    from rftd.streams.spec.stage_parts import TrackerSpec
    from rftd.workers.tracking.process import run_tracker

    tracker = TrackerSpec(kind=kind, args=_parse_arguments(kind, arguments), single_run=single_run, samples=samples)

    async def send(log: EventLog) -> tuple[str, int]:
        registered = await find_entry(log, name)
        count = await run_tracker(
            log,
            registered.id,
            tracker,
            stop=asyncio.Event(),
            clock=SystemClock(),
            logger=logger(role="tracker", tracker=kind),
            environ=os.environ,
            spine_offset=registered.spine_offset,
            until_head=True,
            patient=False,
            into=Path(into) if into else None,
        )
        return registered.name, count

    experiment, count = read_here(settings, log_at, send)
    say(f"{experiment}: {kind} has {count} points")


def _parse_arguments(kind: str, arguments: tuple[str, ...]) -> dict[str, str]:
    """Returns arguments `NAME=VALUE` of a tracker by name. Raises UsageError for unknown and secret ones."""
    from rftd.daemon.config.resolve.monitor import arguments_of
    from rftd.ops.errors import UsageError

    allowed_arguments = arguments_of(kind)
    argument_texts: dict[str, str] = {}
    for argument in arguments:
        name, equals, argument_text = argument.partition("=")
        if not equals or name not in allowed_arguments:
            fix = f"known: {', '.join(allowed_arguments) or 'none'}; write NAME=VALUE"
            raise UsageError(f"{name!r} is not an argument of {kind}", field="--arg", fix=fix)
        if name in ("api_key", "password"):
            fix = "export WANDB_API_KEY or MLFLOW_TRACKING_PASSWORD: a command line is no place for a secret"
            raise UsageError(f"{name} is a secret", field="--arg", fix=fix)
        argument_texts[name] = argument_text
    return argument_texts
