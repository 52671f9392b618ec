"""`rftd backup`: a copy of a data folder in its present state, with or without a running daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rftd.daemon.cli.log_option import SHARED
from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.ops.errors import UsageError
from rftd.ops.paths import absolute_path

if TYPE_CHECKING:
    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.storage.files.backup import BackupManifest, Source


F = TypeVar("F", bound=Callable[..., Any])
"""Type of the decorated function."""

_REFUSED_OPTIONS: Final = {
    SHARED: (
        "a cluster's log is not in the data folder, and rftd does not copy it",
        f"copy its topics with the cluster's own tools; of one experiment a file: rftd export NAME {SHARED} ...",
    ),
    "--postgres": (
        "tables in PostgreSQL are in no data folder, and need no backup: the log can fill them again",
        "leave it out; to fill them: rftd rebuild --postgres ...",
    ),
}
"""Options of other verbs not applicable to a backup, each with its error and fix."""


def _refuse(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """Raises UsageError for a location that cannot be backed up."""
    if value is not None:
        field = option.opts[0]
        problem, fix = _REFUSED_OPTIONS[field if field in _REFUSED_OPTIONS else SHARED]
        raise UsageError(problem, field=field, fix=fix)


def _refused(option: str) -> Callable[[F], F]:
    """Adds a hidden option that is always refused with the reason."""
    return click.option(option, metavar="URL", hidden=True, expose_value=False, callback=_refuse)


@click.command("backup")
@click.argument("folder", metavar="TO", type=click.Path())
@_refused(SHARED)
@_refused("--log")
@_refused("--postgres")
@click.option(
    "--checkpoints",
    type=click.Choice(["newest", "all", "none"]),
    default="newest",
    help="Checkpoints and weights to include for each experiment.  [default: newest]",
)
@shared_options
@click.pass_obj
def command(settings: Settings, folder: str, checkpoints: str) -> None:
    """Back the data folder up to the new folder TO, while its daemon runs: log, tables, and the files of experiments.

    `rftd serve --data TO` runs the copy. Logs of workers, models and datasets are not in it, nor is the owner's token.
    """
    import asyncio
    import os
    from pathlib import Path

    import msgspec

    from rftd.daemon.http.client.address import find_folder
    from rftd.daemon.serve.data_folder import DataFolder, LastBackup
    from rftd.ops.clock import SystemClock
    from rftd.ops.durable import write_durable
    from rftd.ops.releases import release_of
    from rftd.storage.files.backup import back_up

    data_folder = DataFolder(Path(find_folder(settings, os.environ)))
    data_folder.check_whole()
    target = Path(absolute_path(folder))
    manifest = asyncio.run(
        back_up(_source(data_folder), target, checkpoints=checkpoints, release=release_of("rftd"), clock=SystemClock())
    )
    write_durable(data_folder.backed_up, msgspec.json.encode(LastBackup(created=manifest.created, folder=str(target))))
    _print_backup(manifest, str(target), settings)


def _source(data_folder: DataFolder) -> Source:
    """Returns the folder's parts. Raises ConflictError if its log lies elsewhere."""
    from rftd.daemon.serve.folder_log import of_another_log
    from rftd.ops.errors import ConflictError
    from rftd.storage.files.backup import Source
    from rftd.streams.sqlite.heads_file import FILE_NAME

    if of_another_log(data_folder, embedded=True):
        raise ConflictError(
            f"the log of {data_folder.root} is not in it: its daemon was started with a log elsewhere, by {SHARED}",
            where=str(data_folder.log_kind),
            fix="copy it there, as the cluster's own tools do; of one experiment rftd export makes a file",
        )
    heads = data_folder.log / FILE_NAME
    witnesses = (
        heads,
        data_folder.losses,
        data_folder.known,
        data_folder.log_kind,
        data_folder.log_id,
        data_folder.tokens,
    )
    return Source(
        root=data_folder.root,
        log=data_folder.log,
        tables=data_folder.state,
        archives=data_folder.archives,
        unfinished=(data_folder.importing, data_folder.unfinished),
        witnesses=witnesses,
    )


def _print_backup(manifest: BackupManifest, target: str, settings: Settings) -> None:
    """Prints the backup in the folder `target`: its experiments, records, files and notes."""
    records = sum(head.next_offset for head in manifest.heads)
    files = sum(experiment.files for experiment in manifest.experiments)
    if settings.machine_readable:
        experiments = [
            {"experiment": str(experiment.experiment), "name": experiment.name} for experiment in manifest.experiments
        ]
        counts = {"records": records, "files": files}
        emit({"folder": target, **counts, "experiments": experiments, "notes": list(manifest.notes)}, settings)
        return
    for note in manifest.notes:
        say(f"note: {note}", err=True)
    if settings.verbosity >= 0:
        say(f"{len(manifest.experiments)} experiments, {records} records, {files} files: {target}")
