"""`rftd backup`: the daemon's folder, copied while it may run."""

from __future__ import annotations

import click

from rftd.daemon.output.data import emit
from rftd.daemon.output.terminal import say
from rftd.daemon.settings import Settings, shared_options


@click.command("backup")
@click.argument("target", type=click.Path())
@shared_options
@click.pass_obj
def command(settings: Settings, target: str) -> None:
    """Copy the daemon's folder to TARGET, a new folder, while the daemon runs: log, tables, archives and histories.

    `rftd serve --data TARGET` restores it. Folders of experiments, with their checkpoints, are not copied.
    """
    import asyncio
    import os
    from pathlib import Path

    import msgspec

    from rftd.daemon.backing_up import back_up
    from rftd.daemon.client.address import find_folder
    from rftd.daemon.data_folder import DataFolder
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.ops.paths import absolute_path

    source = DataFolder(Path(find_folder(settings, os.environ)))
    path = Path(absolute_path(target))
    clock = SystemClock()
    manifest = asyncio.run(back_up(source, path, clock=clock, ids=SystemIds(clock)))
    if settings.machine_readable:
        emit({"folder": str(path), **msgspec.to_builtins(manifest)}, settings)
        return
    if settings.verbosity >= 0:
        say(f"{len(manifest.experiments)} experiments, {len(manifest.histories)} served histories: {path}")
    for experiment in manifest.experiments:
        say(f"note: not copied: the folder of {experiment.name}, {experiment.job_dir}", err=True)
