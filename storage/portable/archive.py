"""Archives, restores or removes an experiment's files. The events stay in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from uuid import UUID

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.durable import make_durable_folder
from rftd.ops.errors import ArchiveError, LogCorruptError, RftdError
from rftd.storage.files.artifacts import size_and_sha256
from rftd.storage.files.table_files import tables_of
from rftd.storage.files.unreferenced import OwnFile, ours, remove, remove_empty
from rftd.storage.portable.experiment import export_experiment
from rftd.storage.portable.files import check_files, restore
from rftd.streams.events.experiment import ExperimentArchived
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.log.payloads import NOTHING_DROPPED, RECORDS_PER_REWRITE, Dropped, bring_back
from rftd.streams.log.topics import Partition
from rftd.streams.portable.container import ArchiveReader
from rftd.streams.portable.folders import Folders
from rftd.streams.portable.format import Frame, read_frames
from rftd.streams.portable.load import check
from rftd.streams.spec.spec import ExperimentSpec


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """An archive that was written and verified, with the event announcing path, size and digest."""

    event: ExperimentArchived
    """The announcing event."""
    notes: tuple[str, ...]
    """Descriptions of omitted files, with reasons."""


async def write_archive(
    log: EventLog, experiment: UUID, path: Path, *, release: str, clock: Clock, event: UUID
) -> Archived:
    """Exports the experiment with every kept checkpoint to a new file, and verifies the whole file.

    A file from an earlier attempt at the `event` is replaced, because no event names the file. Raises ConflictError if
    the file exists, DiskFullError, ArchiveError if reading back fails.
    """
    # Read back as a whole before use: the caller removes the archived files next.
    await asyncio.to_thread(_discard_attempt, path, event)
    exported = await export_experiment(
        log, experiment, path, release=release, clock=clock, checkpoints="all", event=event
    )
    return Archived(event=await asyncio.to_thread(_verified_event, path, experiment), notes=exported.notes)


async def read_archive(experiment: UUID, spec: ExperimentSpec, path: Path, expected: ExperimentArchived) -> int:
    """Writes an archive's files back to their original paths. Returns the number of files written, without those
    present.

    Raises NotFoundError, LogCorruptError for a file other than the archived one, ConflictError where other files lie.
    """
    return await asyncio.to_thread(_restore_files, experiment, spec, path, expected)


async def bring_payloads_back(log: EventLog, path: Path) -> Dropped:
    """Restores an archive's payloads into the original log; other records are left alone.

    Raises LogCorruptError if a record of the log differs from the archived one.
    """
    archive = await asyncio.to_thread(ArchiveReader, path)
    back = NOTHING_DROPPED
    try:
        for part_of_log in archive.manifest.partitions:
            if part_of_log.stream != topics.EXPERIENCES:
                continue
            partition = Partition(part_of_log.stream, part_of_log.partition)
            frames = read_frames(archive.open(part_of_log.member), f"{path}:{part_of_log.member.name}")
            # On a thread: reading and hashing gigabytes must not block the daemon's loop.
            while chunk := await asyncio.to_thread(_next_frames, frames):
                back += await bring_back(log, partition, {frame.offset: frame.value for frame in chunk})
        return back
    finally:
        archive.close()


def _next_frames(frames: Iterator[Frame]) -> list[Frame]:
    """Returns the next frames, at most `RECORDS_PER_REWRITE`."""
    return list(islice(frames, RECORDS_PER_REWRITE))


def clear(spec: ExperimentSpec, *, logs: bool) -> int:
    """Removes rftd's files from the experiment's folders; returns the number of bytes removed. Blocks.

    Worker logs and conversations with clients, which an archive does not contain, are removed only with `logs`.
    """
    files = clearable(spec, logs=logs)
    remove(file.path for file in files)
    remove_empty(spec)
    return sum(file.size_bytes for file in files)


def clearable(spec: ExperimentSpec, *, logs: bool) -> list[OwnFile]:
    """Returns the files that `clear` would remove, with their sizes. Blocks."""
    return [file for file in ours(spec) if logs or file.kind not in ("log", "conversations")]


def fresh(path: Path) -> None:
    """Prepares the path of a new archive: creates its folder and removes the remains of an earlier attempt. Blocks."""
    make_durable_folder(path.parent)
    path.unlink(missing_ok=True)


def _discard_attempt(path: Path, event: UUID) -> None:
    """Removes the file at `path` if it is an archive left by an earlier attempt at the same event."""
    try:
        archive = ArchiveReader(path)
    except RftdError:  # no file, or one of somebody else: the export refuses an existing name
        return
    archive.close()
    if archive.manifest.event == event:
        path.unlink(missing_ok=True)


def _verified_event(path: Path, experiment: UUID) -> ExperimentArchived:
    """Verifies an archive, and returns the event announcing the archive. Raises ArchiveError, also for another
    experiment's archive.
    """
    archive = ArchiveReader(path)
    try:
        if archive.manifest.experiment != experiment:
            raise ArchiveError(f"it is of experiment {archive.manifest.experiment}", where=str(path))
        check_files(archive, check(archive))
    finally:
        archive.close()
    size_bytes, sha256 = size_and_sha256(path)
    return ExperimentArchived(path=str(path), size_bytes=size_bytes, sha256=sha256)


def _restore_files(experiment: UUID, spec: ExperimentSpec, path: Path, expected: ExperimentArchived) -> int:
    """Verifies an archive and writes its files back; returns the number of files written. Raises LogCorruptError for
    another file than `expected`.
    """
    archive = ArchiveReader(path)
    try:
        if archive.manifest.experiment != experiment or size_and_sha256(path) != (
            expected.size_bytes,
            expected.sha256,
        ):
            raise LogCorruptError(
                "the archive is not the file that was written",
                where=str(path),
                fix="put the right one there, or name it with --from",
            )
        checked = check(archive)
        check_files(archive, checked)
        stages = (Path(stage.folder) for stage in spec.stages)
        roots = [Path(spec.job_dir), *stages, *(table.parent for table in tables_of(spec))]
        return restore(archive, checked, Folders(), roots)
    finally:
        archive.close()
