"""`rftd export`: one experiment, whole, into a file; without a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.log_option import log_option
from rftd.daemon.output.data import emit
from rftd.daemon.settings import Settings, data_folder, shared_options

if TYPE_CHECKING:
    from rftd.daemon.registry import Entry
    from rftd.storage.portable.experiment import ExportReport
    from rftd.streams.backends.backend import LogUrl
    from rftd.streams.log import EventLog


@click.command("export")
@click.argument("experiment")
@click.option("-o", "--to", metavar="FILE", type=click.Path(dir_okay=False), help="New file. Default: ./NAME.rftd.")
@click.option(
    "--checkpoints",
    type=click.Choice(["newest", "all", "none"]),
    default="newest",
    show_default=True,
    help="Checkpoints to include; `newest` adds the published weights of an experiment that has not ended.",
)
@click.option(
    "--force", is_flag=True, help="Export an experiment that a daemon may be running too, as far as it has come."
)
@log_option
@shared_options
@click.pass_obj
def command(
    settings: Settings, experiment: str, to: str | None, checkpoints: str, force: bool, log_at: LogUrl | None
) -> None:
    """Export EXPERIMENT (a name, name@2, an id) to one file: its whole log, artifacts and checkpoints."""
    import asyncio
    from pathlib import Path

    from rftd.daemon.data_folder import DataFolder
    from rftd.daemon.log_source import log_to_read
    from rftd.daemon.registry import find_entry
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.ops.paths import absolute_path

    folder = DataFolder(Path(data_folder(settings)))
    clock = SystemClock()

    async def export() -> tuple[ExportReport, Path]:
        async with log_to_read(folder, log_at, clock=clock, ids=SystemIds(clock)) as log:
            entry = await find_entry(log, experiment)
            path = Path(absolute_path(to or f"{entry.name}.rftd"))
            lock = _at_rest(entry, folder, log_at, force)
            try:
                return await _export(log, entry, path, checkpoints, settings), path
            finally:
                if lock is not None:
                    await asyncio.to_thread(lock.release)

    exported, path = asyncio.run(export())
    manifest = exported.manifest
    records = sum(part.records for part in manifest.partitions)
    if settings.machine_readable:
        answer = {"file": str(path), "experiment": str(manifest.experiment), "name": manifest.name}
        counts = {"state": manifest.state, "records": records, "files": len(manifest.files)}
        emit({**answer, **counts, "size_bytes": path.stat().st_size, "notes": list(exported.notes)}, settings)
        return
    for note in exported.notes:
        click.echo(f"note: {note}", err=True)
    if settings.verbosity >= 0:
        click.echo(f"{manifest.name} ({manifest.experiment}), {manifest.state}")
        click.echo(f"{records} records, {len(manifest.files)} files, {path.stat().st_size} bytes: {path}")


for _option in command.params:
    if _option.name == "output":
        _option.opts.remove("-o")  # here it names the file; the form of the answer keeps its long name


async def _export(log: EventLog, entry: Entry, path: Any, checkpoints: str, settings: Settings) -> ExportReport:
    from rftd.daemon.installed import installed_version
    from rftd.ops.clock import SystemClock
    from rftd.storage.portable.experiment import export_experiment

    return await export_experiment(
        log, entry.id, path, release=installed_version(), clock=SystemClock(), checkpoints=checkpoints
    )


def _at_rest(entry: Entry, folder: Any, log_at: LogUrl | None, force: bool) -> Any:
    """The folder's lock, if the experiment has not ended. Raises ConflictError if a daemon has or may have it."""
    from rftd.ops.errors import ConflictError
    from rftd.streams.backends.backend import backend_of
    from rftd.streams.backends.lock_file import LockFile

    if force or entry.status is None or entry.status.ended:
        return None
    if log_at is not None:
        raise ConflictError(
            f"{entry.name} is {entry.status}, and on {backend_of(log_at).name} nobody can see whether a daemon runs it",
            fix="stop the daemon and its workers, then add --force",
        )
    try:
        # Held while the file is written: a daemon that began meanwhile would append to what is being copied.
        return LockFile(folder.log)
    except ConflictError as error:
        raise ConflictError(
            f"{entry.name} is {entry.status} and a daemon runs it",
            where=error.where,
            fix="stop the daemon, or add --force for a copy of how far it is now",
        ) from error
