"""`rftd export`: one whole experiment into a file; `rftd import`: from a file into a log not in use by a daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, data_folder, shared_options

if TYPE_CHECKING:
    from rftd.daemon.run.registry import Entry
    from rftd.storage.portable.experiment import ExportReport
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog
if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.ops.clock import Clock
    from rftd.storage.files.folder_owner import LogIdentity
    from rftd.storage.portable.experiment import ImportReport, Taken
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog


@click.command("export")
@click.argument("experiment")
@click.option("--to", metavar="FILE", type=click.Path(dir_okay=False), help="New file. Default: ./NAME.rftd.")
@click.option(
    "--checkpoints",
    type=click.Choice(["newest", "all", "none"]),
    default="newest",
    show_default=True,
    help="Checkpoints to include; `newest` adds the published weights of an experiment that has not ended.",
)
@click.option(
    "--force", is_flag=True, help="Export an experiment even if a daemon may be running it, in its current state."
)
@log_option
@shared_options
@click.pass_obj
def command(
    settings: Settings, experiment: str, to: str | None, checkpoints: str, force: bool, log_at: LogUrl | None
) -> None:
    """Export EXPERIMENT (a name, name@2, an id) to one file: its whole log, artifacts and checkpoints."""
    import asyncio
    import os
    from pathlib import Path

    from rftd.daemon.http.client.address import find_folder
    from rftd.daemon.run.registry import find_entry
    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.daemon.serve.log_source import read_here
    from rftd.ops.paths import absolute_path

    folder = DataFolder(Path(find_folder(settings, os.environ)))

    async def export(log: EventLog) -> tuple[ExportReport, Path]:
        exported_entry = await find_entry(log, experiment)
        path = Path(absolute_path(to or f"{exported_entry.name}.rftd"))
        lock = _lock_unless_ended(exported_entry, folder, log_at, force)
        try:
            return await _export(log, exported_entry, path, checkpoints), path
        finally:
            if lock is not None:
                await asyncio.to_thread(lock.release)

    exported, path = read_here(settings, log_at, export)
    manifest = exported.manifest
    records = sum(partition.records for partition in manifest.partitions)
    if settings.machine_readable:
        answer = {"file": str(path), "experiment": str(manifest.experiment), "name": manifest.name}
        counts = {"state": manifest.state, "records": records, "files": len(manifest.files)}
        emit({**answer, **counts, "size_bytes": path.stat().st_size, "notes": list(exported.notes)}, settings)
        return
    for note in exported.notes:
        say(f"note: {note}", err=True)
    if settings.verbosity >= 0:
        say(f"{manifest.name} ({manifest.experiment}), {manifest.state}")
        say(f"{records} records, {len(manifest.files)} files, {path.stat().st_size} bytes: {path}")


async def _export(log: EventLog, entry: Entry, path: Any, checkpoints: str) -> ExportReport:
    """Writes the experiment's log and files to `path`, with `checkpoints` as in the option."""
    from rftd.ops.clock import SystemClock
    from rftd.ops.releases import release_of
    from rftd.storage.portable.experiment import export_experiment

    return await export_experiment(
        log, entry.id, path, release=release_of("rftd"), clock=SystemClock(), checkpoints=checkpoints
    )


def _lock_unless_ended(entry: Entry, folder: Any, log_at: LogUrl | None, force: bool) -> Any:
    """Returns the folder's lock unless the experiment has ended. Raises ConflictError if a daemon may have it."""
    from rftd.ops.errors import ConflictError
    from rftd.streams.log.backend import backend_of
    from rftd.streams.sqlite.lock_file import LockFile

    if force or entry.status is None or entry.status.ended:
        return None
    if log_at is not None:
        raise ConflictError(
            f"{entry.name} is {entry.status}, and on {backend_of(log_at).name} rftd cannot see a running daemon",
            fix="stop the daemon and its workers, then add --force",
        )
    try:
        # Held while the file is written: a daemon starting meanwhile would append to the records being copied.
        return LockFile(folder.log)
    except ConflictError as error:
        raise ConflictError(
            f"{entry.name} is {entry.status} and a daemon runs it",
            where=error.where,
            fix="stop the daemon, or add --force for a copy of how far it is now",
        ) from error


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="OLD=NEW",
    help="Paths below folder OLD become paths below NEW; repeatable. Default: the job folder goes below --data.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Compare the tables of the exported and the imported log.  [default: verify]",
)
@click.option("--allow-code", is_flag=True, help="Import Python files of rewards and workflows, which workers run.")
@log_option
@shared_options
@click.pass_context
def import_(
    ctx: click.Context, file: str, maps: tuple[str, ...], verify: bool, allow_code: bool, log_at: LogUrl | None
) -> None:
    """Import the experiment in FILE into the log of --data, or on Kafka, while no daemon runs. Safe to repeat."""
    import asyncio
    from pathlib import Path

    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.ops.clock import SystemClock
    from rftd.ops.paths import absolute_path
    from rftd.storage.portable.experiment import import_experiment

    settings: Settings = ctx.obj
    folder = DataFolder(Path(data_folder(settings)))
    clock = SystemClock()
    path = Path(absolute_path(file))
    moves = [_parse_map(text) for text in maps]

    async def load() -> ImportReport:
        async with _exclusive_log(folder, log_at, clock) as (log, identity):
            return await import_experiment(
                log,
                path,
                home=folder.root,
                clock=clock,
                moves=moves,
                verify=verify,
                before_append=lambda experiment: _mark_unfinished(folder, experiment, path),
                taken_folders=await _used_folders(log),
                log_id=identity.id if identity is not None else "",
                allow_code=allow_code,
            )

    done = asyncio.run(load())
    # Last of all: after a failure before this line, the import has to be repeated.
    folder.importing.unlink(missing_ok=True)
    _print_import(done, settings)
    ctx.exit(1 if done.equal is False else 0)


async def _used_folders(log: EventLog) -> list[Taken]:
    """Returns the folders of the experiments in the log: a removed one has none."""
    from rftd.daemon.run.registry import Registry
    from rftd.storage.portable.experiment import Taken
    from rftd.streams.folds.spine import Kept

    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    experiments = [experiment for experiment in registry.entries.values() if experiment.spine.kept is not Kept.REMOVED]
    return [Taken(experiment.id, experiment.name, experiment.job_dir) for experiment in experiments]


def _mark_unfinished(folder: DataFolder, experiment: UUID, path: Path) -> None:
    """Keeps daemons from starting until this import ends. Raises ConflictError while another import is unfinished."""
    from rftd.ops.durable import write_durable
    from rftd.ops.errors import ConflictError

    if folder.importing.exists():
        begun, _, unfinished_file = folder.importing.read_text(encoding="utf-8").partition(" ")
        if begun != str(experiment):
            raise ConflictError(
                f"the import of experiment {begun} was interrupted",
                where=str(folder.importing),
                fix=f"end it first: rftd import {unfinished_file}",
            )
    # On disk before the first record: half of an experiment in the log would be run by the next daemon.
    write_durable(folder.importing, f"{experiment} {path}".encode())


@asynccontextmanager
async def _exclusive_log(
    folder: DataFolder, log_at: LogUrl | None, clock: Clock
) -> AsyncIterator[tuple[EventLog, LogIdentity | None]]:
    """Opens the log exclusively, and returns its identity. Raises ConflictError while a daemon has the folder."""
    from rftd.daemon.serve.log_identity import identity_of
    from rftd.daemon.serve.log_source import identity_at, owned_log
    from rftd.ops.ids import SystemIds
    from rftd.streams.log.backend import backend_of
    from rftd.streams.sqlite.log import SqliteLog

    folder.check_no_partial_backup()
    folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log_at is not None:
        async with owned_log(folder, log_at, clock=clock, ids=SystemIds(clock)) as owned:
            yield owned.log, await identity_at(backend_of(log_at).checked(log_at.text))
        return
    log = await SqliteLog.open(folder.log)
    try:
        yield log, identity_of(folder, SystemIds(clock))
    finally:
        await log.close()


def _parse_map(text: str) -> tuple[str, str]:
    """Returns old and new folder of `--map`, with paths in the form of `rftd submit`. Raises UsageError."""
    from rftd.ops.errors import UsageError
    from rftd.ops.paths import absolute_path, plain_path

    old, _, new = text.partition("=")
    if not old.startswith("/") or not new or "\0" in text:
        raise UsageError(
            f"{text!r} is no OLD=NEW", field="--map", fix="give the old folder's absolute path, =, the new"
        )
    return plain_path(old), absolute_path(new)


def _print_import(done: ImportReport, settings: Settings) -> None:
    """Prints the imported experiment, with warnings about missing models and datasets of an unfinished one."""
    import glob
    import os

    from rftd.streams.log.marked import inputs_of

    name = done.manifest.name
    id = done.manifest.experiment
    state = done.manifest.state
    # An unfinished experiment reads models and datasets.
    ended = state in ("completed", "failed", "cancelled", "rejected")
    needed = () if ended else inputs_of(done.spec)
    missing = sorted(path for path in needed if not (os.path.exists(path) or glob.glob(path, recursive=True)))
    if settings.machine_readable:
        counts = {"appended": done.appended, "present": done.present, "files": done.files}
        answer = {"experiment": str(id), "name": name, "state": state, "job_dir": done.spec.job_dir}
        emit({**answer, **counts, "tables_equal": done.equal, "missing": missing}, settings)
        return
    if settings.verbosity >= 0:
        verdict = {None: "tables not compared", True: "tables equal"}.get(done.equal, "TABLES DIFFER")
        say(f"{name} ({id}), {state}, in {done.spec.job_dir}")
        say(f"{done.appended} records appended, {done.present} were there, {done.files} files; {verdict}")
    for path in missing:
        say(f"note: the experiment needs {path}, which is not here: map it with --map, or copy it", err=True)
