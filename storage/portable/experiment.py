"""An experiment into a file and out of one: its records, its files, and the proof that its tables are the same."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops.clock import Clock, iso
from rftd.ops.errors import ConflictError, NotFoundError
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.database.tables.base import Row, is_local
from rftd.storage.files.folder_owner import disown
from rftd.storage.files.served_history import promises
from rftd.storage.files.snapshots import put_memory_aside
from rftd.storage.files.survivors import put_workplaces_aside
from rftd.storage.files.table_files import KIND as TABLE
from rftd.storage.files.table_files import table_folder, table_moves
from rftd.storage.files.unreferenced import stage_folders
from rftd.storage.portable.files import add_files, all_there, check_files, choose, restore
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest_of
from rftd.streams.folds.spine import Kept
from rftd.streams.log.chain import Heads
from rftd.streams.log.log import EventLog
from rftd.streams.portable.container import ArchiveReader, ArchiveWriter
from rftd.streams.portable.experiment_records import ArchiveLog, OwnRecords, closed_heads
from rftd.streams.portable.export import export_records
from rftd.streams.portable.folders import Folders
from rftd.streams.portable.format import ExportManifest
from rftd.streams.portable.load import Checked, check, load, look, note_import
from rftd.streams.portable.present import submitted_in, was_imported
from rftd.streams.spec.spec import ExperimentSpec

IMPORTED: Final = "imported"
"""The folder of the data folder below which imported experiments have their own."""
Progress = Callable[[int], None]


class Taken(NamedTuple):
    """A folder that an experiment of the destination has."""

    experiment: UUID
    name: str
    job_dir: str


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an export."""

    manifest: ExportManifest
    notes: tuple[str, ...]
    """The things that were left out, with reasons."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an import."""

    manifest: ExportManifest
    spec: ExperimentSpec
    """The specification as the destination has it, with its paths moved."""
    appended: int
    """Records that were appended."""
    present: int
    """Records that the destination held already."""
    files: int
    """Files that were written."""
    equal: bool | None
    """True if the tables of the destination equal those of the file; None if they were not compared."""


async def export_experiment(
    log: EventLog,
    experiment: UUID,
    path: Path,
    *,
    release: str,
    clock: Clock,
    checkpoints: str = "newest",
    on_records: Progress = lambda records: None,
    event: UUID | None = None,
) -> ExportReport:
    """Writes the experiment to a new file, as far as the log goes now; `event` is that which will archive it.

    Raises NotFoundError for an experiment that the log does not know, ConflictError if the file exists, DiskFullError.
    """
    notes: list[str] = []
    with ArchiveWriter(path) as archive:
        until = await closed_heads(log)  # the experiment may be running: the export ends at one consistent cut
        partitions, named = await export_records(log, experiment, archive, until=until, on_records=on_records)
        spec = named.spine.spec
        status = named.spine.status
        if spec is None or status is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls for the names")
        if named.spine.kept is Kept.ARCHIVED and named.spine.archive is not None:
            raise ConflictError(
                f"{spec.name} is archived: its files are in {named.spine.archive.path}",
                where=named.spine.archive.path,
                fix="that file is an export already; or bring its files back first: rftd restore"
                f" {shlex.quote(spec.name)}",
            )
        files = await asyncio.to_thread(lambda: add_files(archive, choose(named, checkpoints, notes), notes))
        if named.spine.forked is not None:
            notes.append(f"a fork: {await _name_of(log, named.spine.forked.parent)} must be imported before it")
        manifest = ExportManifest(
            rftd=release,
            experiment=experiment,
            name=spec.name,
            state=status.value,
            job_dir=spec.job_dir,
            created=iso(clock.now_ns()),
            event=event,
            partitions=partitions,
            files=files,
        )
        await asyncio.to_thread(archive.finish, manifest)
    return ExportReport(manifest=manifest, notes=tuple(notes))


async def import_experiment(
    log: EventLog,
    path: Path,
    *,
    home: Path,
    clock: Clock,
    moves: Sequence[tuple[str, str]] = (),
    verify: bool = True,
    before_append: Callable[[UUID], None] = lambda experiment: None,
    taken: Sequence[Taken] = (),
    log_id: str = "",
    on_records: Progress = lambda records: None,
) -> ImportReport:
    """Appends the experiment of a file to the log and writes its files: first checked, then files, then records.

    `moves` says which folders lie elsewhere here. A job folder that none of them covers stays where it is if all its
    files are there and it is none of the `taken`, and else becomes a folder below `home`. Tables of databases go among
    those of the log, whose id is `log_id`. Raises ArchiveError before
    anything is changed, and ConflictError if the log holds another experiment under its id or in the folder that is
    asked for, or lacks the one that it is a fork of.
    """
    archive = await asyncio.to_thread(ArchiveReader, path)
    try:
        experiment = archive.manifest.experiment
        checked = await asyncio.to_thread(check, archive)
        await asyncio.to_thread(check_files, archive, checked)
        await _check_parent(log, archive.manifest.name, checked)
        known = await submitted_in(log, experiment)
        there = known.spec.job_dir if known is not None else None
        default = home / IMPORTED / str(experiment)
        others = {each.job_dir: each.name for each in taken if each.experiment != experiment}
        folders = await asyncio.to_thread(_folders, archive, checked, moves, there, default, others)
        tables = [Path(part.folder, part.path) for part in archive.manifest.files if part.kind == TABLE]
        present_spec = known.spec if known is not None else None
        own_tables = table_moves(tables, folders, home / IMPORTED, log_id, present_spec)
        folders = Folders([*((str(old), str(new)) for old, new in folders.moves), *own_tables])
        present = await look(log, archive, folders)
        roots = [default, table_folder(home / IMPORTED, ""), *(Path(new) for _, new in moves)]
        # Files before records: a daemon that reads the first of them may start the experiment and look for its files.
        files = await asyncio.to_thread(restore, archive, checked, folders, roots)
        lacking = present.records < sum(part.records for part in archive.manifest.partitions)
        if lacking:
            await asyncio.to_thread(_put_memory_aside, checked.spec, folders)
        before_append(experiment)  # from here on a failure leaves records behind, which a repeated import recognises
        # First: an import that is cut off and repeated cannot tell any more that this log had nothing of it. A log that
        # the experiment was never imported into has all its files: it is told of nothing that was left out.
        if lacking or await was_imported(log, experiment):
            await note_import(log, archive, checked, clock)
        loaded = await load(log, archive, folders, present, clock=clock, on_records=on_records)
        equal = None
        if verify and not loaded.later:  # an experiment that went on here has other tables by now
            wanted = await experiment_digest(ArchiveLog(archive), clock=clock)
            equal = await experiment_digest(OwnRecords(log, experiment), clock=clock) == wanted
        now = await submitted_in(log, experiment)
        assert now is not None
        return ImportReport(
            manifest=archive.manifest,
            spec=now.spec,
            appended=loaded.appended,
            present=loaded.present,
            files=files,
            equal=equal,
        )
    finally:
        archive.close()


async def experiment_digest(own: EventLog, *, clock: Clock, until: Heads | None = None) -> str:
    """The sha256 over the tables of a log that shows one experiment's records only, up to `until` or its heads.

    It is equal for two logs that hold the same history: what tells of one log alone is left out (places in the log,
    paths of the machine, dead letters, whose key is a place); the order of rows and everything else counts. The tables
    are made in a database of their own, by the same projector as the live ones.
    """
    with tempfile.TemporaryDirectory(prefix="rftd-digest-") as folder:
        engine = open_database(sqlite_url(Path(folder) / "state.db"))
        try:
            await Projector(own, engine, clock=clock).catch_up(until)
            async with engine.connect() as connection:
                tables = [table for table in Row.metadata.sorted_tables if not is_local(table)]
                found = sorted([(str(table.name), await digest_of(connection, table, is_local)) for table in tables])
        finally:
            await engine.dispose()
    return sha256(msgspec.msgpack.encode(found)).hexdigest()


def _put_memory_aside(spec: ExperimentSpec, folders: Folders) -> None:
    job = Path(folders.path(spec.job_dir))
    put_memory_aside(job)
    disown(job)  # the experiment goes on here: the daemon that runs it next has the folder
    put_workplaces_aside(Path(folders.path(str(folder))) for folder in stage_folders(spec))


async def _check_parent(log: EventLog, name: str, checked: Checked) -> None:
    """A fork's history begins with its parent's, which only the parent's records tell."""
    if checked.parent is not None and await submitted_in(log, checked.parent) is None:
        raise ConflictError(
            f"{name} is a fork of experiment {checked.parent}, which is not here",
            fix=f"import that one first: where it is, rftd export {checked.parent}",
        )


async def _name_of(log: EventLog, experiment: UUID) -> str:
    known = await submitted_in(log, experiment)
    return f"{known.spec.name} ({experiment})" if known is not None else str(experiment)


def _folders(
    archive: ArchiveReader,
    checked: Checked,
    moves: Sequence[tuple[str, str]],
    there: str | None,
    default: Path,
    others: Mapping[str, str],
) -> Folders:
    """The folders that move: those that were asked for, and the job's unless it is one of them or in its place.

    The job folder of an experiment that was removed always moves: whatever lies in the old place now is not its own. So
    does one that is among the folders of `others`, by their names: each experiment tidies its own.
    """
    job_dir = checked.spec.job_dir
    asked = Folders(moves)
    if asked.covers(job_dir):
        if (holder := others.get(asked.path(job_dir))) is not None:
            raise ConflictError(
                f"{holder} has that folder: no two experiments share one",
                where=asked.path(job_dir),
                fix=f"say another one: --map {job_dir}=FOLDER",
            )
        return asked
    if there == job_dir:
        return asked
    if there is not None:
        return Folders([*moves, (job_dir, there)])
    own = [part for part in archive.manifest.files if part.kind != TABLE and not asked.covers(part.folder)]
    histories = promises(checked.spec, checked.offers)
    if not checked.removed and job_dir not in others and Path(job_dir).is_dir() and all_there(own, histories):
        return asked
    return Folders([*moves, (job_dir, str(default))])
