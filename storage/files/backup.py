"""Backup of a data folder, possibly in use by a daemon: the log, the tables, and the files named by the copied log."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.clock import Clock, iso
from rftd.ops.decoding import json_decoder
from rftd.ops.durable import make_durable_folder, sync_folder, write_durable
from rftd.ops.errors import CodecError, ConflictError, DiskFullError, NotFoundError, RftdError, UsageError
from rftd.storage.files.checkpoints import fsync_tree, mark_latest
from rftd.storage.files.served_history import copy_whole
from rftd.storage.files.table_files import KIND as TABLE
from rftd.storage.portable.files import STEP, Chosen, choose
from rftd.streams.events.experiment import HeadRef
from rftd.streams.folds.spine import Kept
from rftd.streams.log import topics
from rftd.streams.log.chain import Mark
from rftd.streams.log.deadletters import head_of
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition
from rftd.streams.portable.export import OutsideNames
from rftd.streams.sqlite.schema import FILE_NAME
from rftd.streams.sqlite.view import SqliteView

MANIFEST: Final = "backup.json"
"""Name of the backup's file that describes its content."""
UNFINISHED: Final = "backup.pending"
"""Name of the marker file in an unfinished or interrupted backup."""
FILES: Final = "experiments"
"""Name of the backup's folder with the experiments' files, each at its own absolute path below it."""
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The data folder to back up, with the paths of log, tables, archives and witnesses inside."""

    root: Path
    """The data folder."""
    log: Path
    """The folder of the embedded log."""
    tables: Path
    """The SQLite file with the tables; it need not exist."""
    archives: Path
    """The folder of archived experiments."""
    unfinished: tuple[Path, ...]
    """Marker files; an existing one means that the data folder itself is incomplete."""
    witnesses: tuple[Path, ...]
    """Files and folders with remembered heads of the log, or lying beside the log; copied unchanged if they exist."""


class BackedUp(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment in a backup, with the number and total size of copied files."""

    experiment: UUID
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    state: str
    """State of the experiment."""
    job_dir: str
    """Folder of the experiment."""
    files: int
    """Number of copied files."""
    size_bytes: int
    """Total size of the copied files."""


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a backup, as stored in `backup.json`: origin, heads, experiments, and omissions."""

    release: str
    """Release of rftd that wrote the backup."""
    created: str
    """ISO 8601."""
    source: str
    """The path of the copied data folder."""
    heads: tuple[HeadRef, ...]
    """The heads of the copied log; younger records are not in the backup."""
    experiments: tuple[BackedUp, ...]
    """The experiments of the log."""
    left_out: tuple[str, ...]
    """The folders of checkpoints and weights named by the log and absent from the backup."""
    notes: tuple[str, ...]
    """Descriptions of everything left out, with reasons."""


def manifest_of(root: Path) -> BackupManifest | None:
    """Returns the manifest of a data folder restored from a backup; None for any other folder. Raises CodecError for a
    damaged manifest.
    """
    try:
        return json_decoder(BackupManifest).decode((root / MANIFEST).read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        fix = "put it back from the backup"
        raise CodecError(f"it cannot be read: {error}", where=str(root / MANIFEST), fix=fix) from error


def files_not_restored(root: Path, manifest: BackupManifest, heads: Mapping[Partition, Mark]) -> Path | None:
    """Returns the folder of experiments' files in a backup whose log is unchanged; None once that folder is gone.

    Until a daemon appends to the copied log, the log owns the files in the backup, not those at the experiments' own
    paths: the original may still be in use.
    """
    unchanged = {HeadRef(*partition, *mark) for partition, mark in heads.items()} == set(manifest.heads)
    files = root / FILES
    return files if unchanged and files.is_dir() else None


async def back_up(source: Source, target: Path, *, checkpoints: str, release: str, clock: Clock) -> BackupManifest:
    """Copies the data folder to `target`, named so only once complete and durable.

    `checkpoints` (`newest`, `all` or `none`) chooses the files of experiments as for an export. Raises UsageError for a
    target inside the folder, ConflictError if the target exists, NotFoundError without a log, DiskFullError.
    """
    _check(source, target)
    partial = target.with_name(f"{target.name}.partial")
    lock_descriptor = -1
    try:
        lock_descriptor = await asyncio.to_thread(_begin, partial)
        await asyncio.to_thread(_copy_folder, source, partial)
        _check_whole(source)  # again: an import may have begun meanwhile
        log = await SqliteView.open(partial / "log")
        try:
            heads = await log.heads()
            named = await _outside_names(log)
        finally:
            await log.close()
        notes: list[str] = []
        left_out: list[str] = []
        experiments = await asyncio.to_thread(
            lambda: [
                _copy_files(id, names, partial / FILES, source.archives, checkpoints, notes, left_out)
                for id, names in named
            ]
        )
        manifest = BackupManifest(
            release=release,
            created=iso(clock.now_ns()),
            source=str(source.root),
            heads=tuple(HeadRef(*partition, *mark) for partition, mark in sorted(heads.items())),
            experiments=tuple(experiments),
            left_out=tuple(left_out),
            notes=tuple(notes),
        )
        await asyncio.to_thread(_finish, partial, target, manifest)
        return manifest
    except (OSError, DiskFullError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_SPACE:
            message = f"the backup cannot be written: {error.strerror}"
            raise UsageError(message, where=str(error.filename or partial), fix="name a folder of yours") from error
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
        fix = "free some space, or name a folder on another disk"
        raise DiskFullError("no space for the backup", where=str(partial), fix=fix) from error
    finally:
        if lock_descriptor >= 0:
            os.close(lock_descriptor)


def _check_whole(source: Source) -> None:
    """Raises ConflictError for a data folder with an interrupted import or backup."""
    for marker in source.unfinished:
        if marker.exists():
            raise ConflictError(
                "this folder is not whole: an import into it, or the backup that it is, was interrupted",
                where=str(marker),
                fix="end the import first, or take another backup",
            )


def _check(source: Source, target: Path) -> None:
    """Raises an error unless the source is whole, and the target new and outside of it."""
    _check_whole(source)
    if not (source.log / FILE_NAME).exists():
        raise NotFoundError(f"there is no event log at {source.log / FILE_NAME}", fix="name its folder with --data")
    inner, outer = target.resolve(), source.root.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise UsageError(f"{target} and the data folder {source.root} hold each other", fix="name a folder elsewhere")
    if target.exists():
        raise ConflictError("the folder is not empty", where=str(target), fix="name a new folder")


def _begin(partial: Path) -> int:
    """Creates the partial folder anew, and returns the descriptor of an exclusive lock on it, to be closed by the
    caller.

    Existing content is removed only in case of an interrupted backup.
    """
    marker = partial / UNFINISHED
    if not marker.exists():
        _refuse_unmarked(partial)
    make_durable_folder(partial.parent)
    partial.mkdir(mode=0o700, exist_ok=True)
    lock_descriptor = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The kernel drops the lock with the process, however the process ends: a killed backup locks nobody out.
        fcntl.flock(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock_descriptor)
        fix = "wait for it, or name another folder"
        raise ConflictError("another backup is being written there", where=str(partial), fix=fix) from error
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != marker:
            path.unlink()
    sync_folder(partial)
    (partial / FILES).mkdir()
    return lock_descriptor


def _refuse_unmarked(partial: Path) -> None:
    """Raises ConflictError for a folder without the marker, unless empty: a backup may be killed before writing the
    marker.
    """
    if (partial / MANIFEST).exists():
        message = "this is a whole backup, of a process that ended right before it gave it its name"
        fix = f"rename it to {partial.name.removesuffix('.partial')}, or move it away"
        raise ConflictError(message, where=str(partial), fix=fix)
    if partial.exists() and not (partial.is_dir() and not any(partial.iterdir())):
        raise ConflictError("this is no backup that was cut off", where=str(partial), fix="move it away")


def _copy_folder(source: Source, partial: Path) -> None:
    # Witnesses are copied before the log: a witness younger than the copied log would report the log as shortened.
    """Copies witnesses, archives, tables and log into the partial backup, in this order."""
    for path in (*source.witnesses, source.archives):
        _copy_tree(path, partial / path.relative_to(source.root))
    if source.tables.exists():
        copy_whole(source.tables, partial / source.tables.relative_to(source.root))
    log = partial / source.log.relative_to(source.root)
    log.mkdir(mode=0o700, exist_ok=True)
    copy_whole(source.log / FILE_NAME, log / FILE_NAME)


def _copy_tree(path: Path, target: Path) -> None:
    """Copies a file or folder; a missing file is skipped."""
    if path.is_dir():
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for inner in sorted(path.iterdir()):
            _copy_tree(inner, target / inner.name)
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        shutil.copy2(path, target)
    except FileNotFoundError:  # it never existed, or was replaced by a newer file of another name
        return


async def _outside_names(log: EventLog) -> list[tuple[UUID, OutsideNames]]:
    """Returns the names of files outside of the log, by experiment, for all experiments with a specification."""
    named: dict[UUID, OutsideNames] = {}
    for partition in topics.EVENTS:
        offset = 0
        while records := await log.read(partition, offset):
            offset = records[-1].offset + 1
            for record in records:
                head = head_of(record)
                if head is not None and head.experiment is not None:
                    named.setdefault(head.experiment, OutsideNames()).take(record)
    return [(id, names) for id, names in named.items() if names.spine.spec is not None]


def _copy_files(
    id: UUID,
    named: OutsideNames,
    files: Path,
    archives: Path,
    checkpoints: str,
    notes: list[str],
    left_out: list[str],
) -> BackedUp:
    """Copies the files of one experiment. Extends `notes`, and `left_out` by the folders not copied."""
    spec = named.spine.spec
    status = named.spine.status
    assert spec is not None
    count = 0
    size_bytes = 0
    own_notes: list[str] = []
    folders: dict[Path, str] = {}
    """The kind of each folder whose files were all copied so far."""
    broken: set[Path] = set()
    if named.spine.kept is Kept.ARCHIVED:
        archive = named.spine.archive
        if archive is not None and not Path(archive.path).is_relative_to(archives):
            own_notes.append(f"its archive {archive.path} is not in the backup")
    else:
        for file in _chosen_or_noted(choose(named, checkpoints, own_notes), own_notes):
            if file.folder in broken:
                continue
            path = file.folder / file.path
            copied = files / path.relative_to(path.anchor)
            copied.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                shutil.copy2(file.copy or path, copied)
            except FileNotFoundError:
                if file.kind == TABLE:  # its folder is shared with other experiments
                    own_notes.append(f"{path} left out: it was removed meanwhile")
                    continue
                own_notes.append(f"{file.folder} left out: it was removed meanwhile")
                broken.add(file.folder)
                continue
            folders[file.folder] = file.kind
            count += 1
            size_bytes += copied.stat().st_size
    for folder in broken:
        folders.pop(folder, None)
        shutil.rmtree(files / folder.relative_to(folder.anchor), ignore_errors=True)
    _mark_newest(files, (folder for folder, kind in folders.items() if kind == "checkpoint"))
    retained_paths = [event.path for event in named.undeleted_checkpoints()] + [
        event.path for event in named.kept_weights()
    ]
    left_out += [path for path in retained_paths if Path(path) not in folders]
    notes += [f"{spec.name}: {note}" for note in own_notes]
    state = status.value if status is not None else "submitted"
    return BackedUp(
        experiment=id, name=spec.name, state=state, job_dir=spec.job_dir, files=count, size_bytes=size_bytes
    )


def _mark_newest(files: Path, checkpoints: Iterable[Path]) -> None:
    """Writes the `latest_*` marker files beside the copied checkpoints."""
    newest: dict[Path, int] = {}
    for folder in checkpoints:
        step = STEP.fullmatch(folder.name)
        if step is not None:
            job_dir = files / folder.parent.relative_to(folder.anchor)
            newest[job_dir] = max(int(step[1]), newest.get(job_dir, 0))
    for job_dir, number in newest.items():
        mark_latest(job_dir, number)


def _chosen_or_noted(chosen: Iterator[Chosen], notes: list[str]) -> Iterator[Chosen]:
    """Yields the chosen files; the first error of rftd, such as a missing indispensable file, ends the iteration and
    becomes a note.

    A backup of the other experiments is still a backup.
    """
    try:
        yield from chosen
    except RftdError as error:
        notes.append(f"it is not whole: {error.what} at {error.where}")


def _finish(partial: Path, target: Path, manifest: BackupManifest) -> None:
    """Writes the manifest, syncs everything, and renames the backup to its final name."""
    write_durable(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    # Every byte is synced before the name: a backup with its final name is complete, even after a power cut.
    fsync_tree(partial)
    (partial / UNFINISHED).unlink()
    sync_folder(partial)
    partial.rename(target)
    sync_folder(target.parent)
