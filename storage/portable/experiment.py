"""Export of an experiment to a file, and import: records, files, and the proof of equal tables."""

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
from rftd.ops.errors import ArchiveError, ConflictError, NotFoundError
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
"""Name of the data folder's subfolder for imported experiments."""
Progress = Callable[[int], None]
"""Function called with the number of records done."""


class Taken(NamedTuple):
    """A job folder already in use by an experiment of the destination."""

    experiment: UUID
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    job_dir: str
    """Path of the job folder, as in the specification of its experiment."""


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an export: the manifest of the written file, and omissions."""

    manifest: ExportManifest
    """Manifest of the file."""
    notes: tuple[str, ...]
    """Descriptions of omitted files, with reasons."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an import: moved specification, numbers of records and files, and the comparison of tables."""

    manifest: ExportManifest
    """Manifest of the file."""
    spec: ExperimentSpec
    """The specification in the destination, with its paths moved."""
    appended: int
    """Number of appended records."""
    present: int
    """Number of records already in the destination."""
    files: int
    """Number of files written."""
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
    """Writes the experiment to a new file, up to the current end of the log; `event` is the id of a planned archiving
    event.

    Raises NotFoundError for an experiment unknown to the log, ConflictError if the file exists, DiskFullError.
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
    taken_folders: Sequence[Taken] = (),
    log_id: str = "",
    allow_code: bool = False,
    on_records: Progress = lambda records: None,
) -> ImportReport:
    """Appends the experiment of a file to the log and writes its files: first the checks, then the files, then the
    records.

    `moves` maps folders of the export to folders on this machine. A job folder outside of `moves` stays in place if
    complete and not used by an experiment of `taken_folders`; otherwise a folder below `home` is used. Tables of
    databases go into the table folder of the log `log_id`. Raises ArchiveError before any change, also for Python
    code in the experiment without `allow_code`, and ConflictError if the log holds another experiment under the id or
    in the requested folder, or lacks the parent of a fork.
    """
    archive = await asyncio.to_thread(ArchiveReader, path)
    try:
        experiment = archive.manifest.experiment
        checked = await asyncio.to_thread(check, archive)
        await asyncio.to_thread(check_files, archive, checked)
        _check_code(archive, checked, allowed=allow_code)
        await _check_parent(log, archive.manifest.name, checked)
        submitted = await submitted_in(log, experiment)
        present_job_dir = submitted.spec.job_dir if submitted is not None else None
        default = home / IMPORTED / str(experiment)
        taken_names = {folder.job_dir: folder.name for folder in taken_folders if folder.experiment != experiment}
        folders = await asyncio.to_thread(_folder_moves, archive, checked, moves, present_job_dir, default, taken_names)
        tables = [Path(file.folder, file.path) for file in archive.manifest.files if file.kind == TABLE]
        present_spec = submitted.spec if submitted is not None else None
        own_tables = table_moves(tables, folders, home / IMPORTED, log_id, present_spec)
        folders = Folders([*((str(old), str(new)) for old, new in folders.moves), *own_tables])
        present = await look(log, archive, folders)
        roots = [default, table_folder(home / IMPORTED, ""), *(Path(new) for _, new in moves)]
        # Files before records: a daemon reading the first records may start the experiment and look for files.
        files = await asyncio.to_thread(restore, archive, checked, folders, roots)
        lacking = present.records < sum(part_of_log.records for part_of_log in archive.manifest.partitions)
        if lacking:
            await asyncio.to_thread(_put_memory_aside, checked.spec, folders)
        before_append(experiment)  # from here on a failure leaves records behind, which a repeated import recognises
        # Before the records: a repeated import after an interruption can no longer detect a log initially without
        # records. A log already holding the experiment, not by an import, has all files: no missing files are recorded
        # there.
        if lacking or await was_imported(log, experiment):
            await note_import(log, archive, checked, clock)
        loaded = await load(log, archive, folders, present, clock=clock, on_records=on_records)
        equal = None
        if verify and not loaded.later:  # an experiment that continued here has different tables by now
            expected_digest = await experiment_digest(ArchiveLog(archive), clock=clock)
            equal = await experiment_digest(OwnRecords(log, experiment), clock=clock) == expected_digest
        imported = await submitted_in(log, experiment)
        assert imported is not None
        return ImportReport(
            manifest=archive.manifest,
            spec=imported.spec,
            appended=loaded.appended,
            present=loaded.present,
            files=files,
            equal=equal,
        )
    finally:
        archive.close()


async def experiment_digest(own_records: EventLog, *, clock: Clock, until: Heads | None = None) -> str:
    """Returns the sha256 over the tables of a log restricted to an experiment's records, up to `until` or the heads.

    Two logs with equal history have equal digests: columns specific to a log are left out (positions in the log, local
    paths, dead letters, with positions as keys); the order of rows and everything else counts. The tables are created
    in a temporary database, by the projector of the live tables.
    """
    with tempfile.TemporaryDirectory(prefix="rftd-digest-") as folder:
        engine = open_database(sqlite_url(Path(folder) / "state.db"))
        try:
            await Projector(own_records, engine, clock=clock).catch_up(until)
            async with engine.connect() as connection:
                tables = [table for table in Row.metadata.sorted_tables if not is_local(table)]
                digests = sorted([(str(table.name), await digest_of(connection, table, is_local)) for table in tables])
        finally:
            await engine.dispose()
    return sha256(msgspec.msgpack.encode(digests)).hexdigest()


def _put_memory_aside(spec: ExperimentSpec, folders: Folders) -> None:
    """Sets aside the memories of the former log in the job's folder."""
    job = Path(folders.path(spec.job_dir))
    put_memory_aside(job)
    disown(job)  # the experiment continues here: the next daemon that runs it owns the folder
    put_workplaces_aside(Path(folders.path(str(folder))) for folder in stage_folders(spec))


def _check_code(archive: ArchiveReader, checked: Checked, *, allowed: bool) -> None:
    """Raises ArchiveError for an experiment with Python code of its own, unless `allowed`."""
    sources = sorted({file for stage in checked.spec.stages for file in stage.sources})
    if sources and not allowed:
        # A daemon continues an unfinished experiment by itself, and its workers would run the code.
        raise ArchiveError(
            f"the experiment brings Python code of its own: {', '.join(sources)}",
            where=str(archive.path),
            fix="add --allow-code if it comes from somebody you trust",
        )


async def _check_parent(log: EventLog, name: str, checked: Checked) -> None:
    """Raises ConflictError for a fork without its parent, because only the parent's records tell how the fork's history
    begins.
    """
    if checked.parent is not None and await submitted_in(log, checked.parent) is None:
        raise ConflictError(
            f"{name} is a fork of experiment {checked.parent}, which is not here",
            fix=f"import that one first: where it is, rftd export {checked.parent}",
        )


async def _name_of(log: EventLog, experiment: UUID) -> str:
    """Returns the name and id of an experiment, for notes."""
    submitted = await submitted_in(log, experiment)
    return f"{submitted.spec.name} ({experiment})" if submitted is not None else str(experiment)


def _folder_moves(
    archive: ArchiveReader,
    checked: Checked,
    moves: Sequence[tuple[str, str]],
    present_job_dir: str | None,
    default: Path,
    taken_names: Mapping[str, str],
) -> Folders:
    """Returns the folder moves: the requested ones, plus the job's own folder unless covered or already in place.

    The job folder of a removed experiment always moves: files now at the old path are foreign. So does a folder in use
    by another experiment (`taken_names`): each experiment cleans a separate folder.
    """
    job_dir = checked.spec.job_dir
    requested = Folders(moves)
    if requested.covers(job_dir):
        if (holder := taken_names.get(requested.path(job_dir))) is not None:
            raise ConflictError(
                f"{holder} has that folder: no two experiments share one",
                where=requested.path(job_dir),
                fix=f"choose another: --map {job_dir}=FOLDER",
            )
        return requested
    if present_job_dir == job_dir:
        return requested
    if present_job_dir is not None:
        return Folders([*moves, (job_dir, present_job_dir)])
    own_files = [file for file in archive.manifest.files if file.kind != TABLE and not requested.covers(file.folder)]
    histories = promises(checked.spec, checked.offers)
    if (
        not checked.removed
        and job_dir not in taken_names
        and Path(job_dir).is_dir()
        and all_there(own_files, histories)
    ):
        return requested
    return Folders([*moves, (job_dir, str(default))])
