"""A data folder copied while its daemon may run, as one consistent set: `rftd backup`.

    <copy>/log/log.db, log/log.heads   the embedded log, and the heads that it remembers
    <copy>/state.db                    the tables
    <copy>/known, losses.json, log.kind, tokens.json, archives
    <copy>/histories/ID/N/history.db   the histories of served experiments, by the stage's number
    <copy>/backup.json                 the contents, written last

What remembers heads is copied before the log, so that it is never newer than the copy; what the log promises is copied
after it, so that it is never older. The copy has another name until it is whole. The owner's token is left out.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import UUID

import msgspec

from rftd.daemon.data_folder import DataFolder
from rftd.daemon.folder_log import of_another_log
from rftd.daemon.log_source import log_to_read
from rftd.daemon.registry import Registry
from rftd.ops.clock import Clock
from rftd.ops.durable import make_durable_folder, sync_folder, write_durable
from rftd.ops.errors import ConflictError, DataError, NotFoundError, UsageError
from rftd.ops.ids import Ids
from rftd.ops.releases import release_of
from rftd.storage.served_history import FILE, promises
from rftd.streams.backends.sqlite.heads_file import FILE_NAME
from rftd.streams.folds.spine import Kept


class CopiedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment in a backup; its own folder is not copied."""

    id: UUID
    name: str
    state: str
    job_dir: str


class CopiedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A served history in a backup: its path at the time, and its path below the copy."""

    origin: str
    path: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """backup.json: the contents of a backup."""

    release: str
    source: str
    began_ns: int
    experiments: tuple[CopiedExperiment, ...]
    histories: tuple[CopiedHistory, ...]


async def back_up(source: DataFolder, target: Path, *, clock: Clock, ids: Ids) -> BackupManifest:
    """Copies the folder to `target`, a new one, which has its name only once it is whole.

    Raises UsageError for a target that cannot be one, NotFoundError where no embedded log is, ConflictError while
    another backup writes there, DataError if the disk is full or a file cannot be copied.
    """
    _check(source, target)
    began_ns = clock.now_ns()
    try:
        with _unfinished(target) as copy:
            await asyncio.to_thread(_copy_folder, source, copy)
            experiments, histories = await _copy_histories(copy, clock, ids)
            manifest = BackupManifest(
                release=release_of("rftd"),
                source=str(source.root),
                began_ns=began_ns,
                experiments=experiments,
                histories=histories,
            )
            await asyncio.to_thread(_finish, copy, target, manifest)
    except (OSError, sqlite3.Error) as error:
        fix = "nothing was left there: free some space, or name a folder that can be written, and repeat it"
        raise DataError(f"the backup could not be written: {error}", where=str(target), fix=fix) from error
    # Doctor tells of it; a folder that cannot be written has its backup nevertheless.
    with suppress(OSError):
        write_durable(source.last_backup, f"{began_ns} {target}".encode())
    return manifest


def _check(source: DataFolder, target: Path) -> None:
    if of_another_log(source, embedded=True):
        raise UsageError(
            "the log of this folder is not in it, and only an embedded log can be backed up here",
            field="--data",
            fix="rftd export NAME copies an experiment with its whole log; mirror the cluster for all of them",
        )
    if not (source.log / "log.db").exists():
        raise NotFoundError("there is no log to back up", where=str(source.log), fix="name the folder: --data DIR")
    real = target.resolve()
    root = source.root.resolve()
    if real.is_relative_to(root) or root.is_relative_to(real):
        raise UsageError(f"{target} and {root} lie in each other", field="TARGET", fix="name a folder outside of it")
    if os.path.lexists(target):
        raise UsageError(f"{target} exists", field="TARGET", fix="name a new folder")


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """A folder beside the target that no daemon takes; what a killed backup left there is removed, as is a failed one.

    Raises ConflictError while another backup writes there, UsageError if something else is in the way.
    """
    copy = DataFolder(target.with_name(f".{target.name}.partial"))
    make_durable_folder(target.parent)
    if os.path.lexists(copy.root) and not copy.backing_up.exists():
        raise UsageError(f"{copy.root} is in the way", field="TARGET", fix="move it away, or name another folder")
    copy.root.mkdir(mode=0o700, exist_ok=True)
    with copy.backing_up.open("ab") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another backup is being written there"
            raise ConflictError(what, where=str(copy.root), fix="wait for it, or name another folder") from None
        try:
            _empty(copy)
            yield copy.root
        except BaseException:
            shutil.rmtree(copy.root, ignore_errors=True)
            raise


def _empty(copy: DataFolder) -> None:
    for path in copy.root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != copy.backing_up:
            path.unlink()


def _copy_folder(source: DataFolder, root: Path) -> None:
    copy = DataFolder(root)
    for folder in (copy.log, copy.known, copy.archives):
        folder.mkdir(mode=0o700)
    _copy_file(source.losses, copy.losses)
    _copy_file(source.log_kind, copy.log_kind)
    _copy_file(source.root / "tokens.json", copy.root / "tokens.json")
    for path in sorted(source.known.glob("*.fold*")):
        _copy_file(path, copy.known / path.name)
    _copy_file(source.log / FILE_NAME, copy.log / FILE_NAME)
    if source.state.exists():
        _copy_database(source.state, copy.state)
    _copy_database(source.log / "log.db", copy.log / "log.db")
    # After the log: a file of an archive is there before its event.
    for path in sorted(source.archives.glob("*.rftd")):
        _copy_file(path, copy.archives / path.name)
    for folder in (copy.log, copy.known, copy.archives):
        sync_folder(folder)


def _copy_file(path: Path, target: Path) -> None:
    """Copies a file durably; one that is not there, or no more, is left out."""
    with suppress(FileNotFoundError), path.open("rb") as source, target.open("xb") as copy:
        os.fchmod(copy.fileno(), 0o600)
        shutil.copyfileobj(source, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _copy_database(path: Path, target: Path) -> None:
    """Copies a database that may be written meanwhile to a new file, as of one moment."""
    target.touch(mode=0o600, exist_ok=False)
    with (
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        # In one step, which is one read transaction: in several, a busy writer would make it begin anew for ever.
        source.backup(copy)
        # The copy is one file: it has no write-ahead log beside it.
        copy.execute("PRAGMA journal_mode = DELETE")


async def _copy_histories(
    root: Path, clock: Clock, ids: Ids
) -> tuple[tuple[CopiedExperiment, ...], tuple[CopiedHistory, ...]]:
    """The experiments of the copied log, and their served histories, copied."""
    async with log_to_read(DataFolder(root), None, clock=clock, ids=ids) as log:
        registry = Registry(log)
        try:
            await registry.catch_up()
        finally:
            await registry.close()
    experiments: list[CopiedExperiment] = []
    histories: list[CopiedHistory] = []
    for entry in registry.entries.values():
        if entry.spine.kept is Kept.REMOVED:
            continue
        experiments.append(
            CopiedExperiment(id=entry.id, name=entry.name, state=str(entry.status), job_dir=entry.job_dir)
        )
        for folder, offer in promises(entry.spec, {}).items():
            path = folder / FILE
            if path.exists():
                target = Path("histories", str(entry.id), str(offer.stage), FILE)
                make_durable_folder((root / target).parent)
                await asyncio.to_thread(_copy_database, path, root / target)
                histories.append(CopiedHistory(origin=str(path), path=str(target)))
    return tuple(experiments), tuple(histories)


def _finish(copy: Path, target: Path, manifest: BackupManifest) -> None:
    write_durable(copy / "backup.json", msgspec.json.format(msgspec.json.encode(manifest)))
    DataFolder(copy).backing_up.unlink()
    sync_folder(copy)
    copy.rename(target)
    sync_folder(target.parent)
