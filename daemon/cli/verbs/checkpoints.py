"""`rftd checkpoints`: an experiment's checkpoints, and the download of one."""

from __future__ import annotations

from pathlib import Path

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import age, size
from rftd.daemon.cli.output.table import console_of, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument
from rftd.daemon.http.views import checkpoints
from rftd.ops.clock import SystemClock


@click.group("checkpoints")
def command() -> None:
    """List an experiment's checkpoints, or download one."""


@command.command("ls")
@experiment_argument
@click.option("--deleted", is_flag=True, help="Also checkpoints whose folders were deleted.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Number of checkpoints."
)
@shared_options
@click.pass_obj
def ls(settings: Settings, name: str, deleted: bool, limit: int) -> None:
    """List the checkpoints of experiment NAME, the newest first.

    COUNTS is empty for a checkpoint of a step that was trained again from an earlier checkpoint.
    """
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        answer = client.ask(checkpoints.checkpoints, name=name, deleted=deleted, limit=limit)
    if emitted(answer.plain(), settings):
        return
    clock = SystemClock()
    headers = ("STEP", "STAGE", "FILES", "SIZE", "AGE", "COUNTS", "FOLDER")
    rows = [
        (
            str(row.step),
            str(row.stage),
            str(row.files),
            size(row.size_bytes),
            age(row.committed_ns, clock),
            "yes" if row.counts else "",
            row.path if row.deleted_reason is None else f"deleted: {row.deleted_reason}",
        )
        for row in answer.value.items
    ]
    console = console_of(settings)
    console.print(table(headers, rows, right=headers[:5], width=console.width, first_to_go=("FILES", "STAGE")))


@command.command("download")
@experiment_argument
@click.argument("step", type=click.IntRange(0))
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), help="Folder; by default NAME-STEP.")
@shared_options
@click.pass_obj
def download(settings: Settings, name: str, step: int, folder: Path | None) -> None:
    """Download the checkpoint of STEP of experiment NAME, and check its files; needs a token of role admin.

    A download cut off goes on where it ended: repeat the command.
    """
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        run = client.run(name)
        folder = folder or Path(f"{run.name}-{step}")
        run.download(step, folder)
    done = {"name": run.name, "id": run.id, "step": step, "folder": str(folder)}
    if not emitted(done, settings) and settings.verbosity >= 0:
        say(f"{run.name}  checkpoint of step {step} in {folder}")
