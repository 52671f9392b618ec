"""An experiment's files into an archive, back to their place, or away. Its events stay in the log."""

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
from rftd.storage.files.unreferenced import ours, remove, remove_empty
from rftd.storage.portable.experiment import export_experiment
from rftd.storage.portable.files import check_files, restore
from rftd.streams.events.experiment import ExperimentArchived
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.log.payloads import AT_ONCE, NOTHING, Dropped, bring_back
from rftd.streams.log.topics import Partition
from rftd.streams.portable.container import ArchiveReader
from rftd.streams.portable.folders import Folders
from rftd.streams.portable.format import Frame, read_frames
from rftd.streams.portable.load import check
from rftd.streams.spec.spec import ExperimentSpec


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """An archive that was written and read back."""

    event: ExperimentArchived
    notes: tuple[str, ...]
    """The things that were left out, with reasons."""


async def write_archive(
    log: EventLog, experiment: UUID, path: Path, *, release: str, clock: Clock, event: UUID
) -> Archived:
    """Exports the experiment with every kept checkpoint to a new file, and checks that as a whole.

    The file that an earlier attempt at the same `event` left is replaced: no event names it.

    Raises ConflictError if the file exists, DiskFullError, ArchiveError if it cannot be read back.
    """
    # Read back as a whole before anybody relies on it: the caller removes the files that it holds next.
    await asyncio.to_thread(_discard_attempt, path, event)
    exported = await export_experiment(
        log, experiment, path, release=release, clock=clock, checkpoints="all", event=event
    )
    return Archived(event=await asyncio.to_thread(_checked, path, experiment), notes=exported.notes)


async def read_archive(experiment: UUID, spec: ExperimentSpec, path: Path, expected: ExperimentArchived) -> int:
    """Writes the files of an archive back to their places. Returns the number of those that were missing there.

    Raises NotFoundError, ArchiveError unless it is the very file that was archived, ConflictError where others lie.
    """
    return await asyncio.to_thread(_restored, experiment, spec, path, expected)


async def bring_payloads_back(log: EventLog, path: Path) -> Dropped:
    """Puts the payloads that an archive holds back into the log that it was written from; other records are left.

    Raises LogCorruptError if the log's record is not the one that was archived.
    """
    archive = await asyncio.to_thread(ArchiveReader, path)
    back = NOTHING
    try:
        for part in archive.manifest.partitions:
            if part.stream != topics.EXPERIENCES:
                continue
            partition = Partition(part.stream, part.partition)
            frames = read_frames(archive.open(part.member), f"{path}:{part.member.name}")
            # On a thread: reading and hashing gigabytes must not hold up the daemon's loop.
            while chunk := await asyncio.to_thread(_some, frames):
                back += await bring_back(log, partition, {frame.offset: frame.value for frame in chunk})
        return back
    finally:
        archive.close()


def _some(frames: Iterator[Frame]) -> list[Frame]:
    return list(islice(frames, AT_ONCE))


def clear(spec: ExperimentSpec, *, logs: bool) -> int:
    """Removes our files from the experiment's folders, and what no archive holds only if `logs`. Returns bytes. Blocks.

    That is the logs of its workers, and the conversations that it had with clients.
    """
    found = [each for each in ours(spec) if logs or each.kind not in ("log", "conversations")]
    remove(each.path for each in found)
    remove_empty(spec)
    return sum(each.size_bytes for each in found)


def fresh(path: Path) -> None:
    """Makes room for an archive of ours of this name: the rest of an earlier attempt is removed. Blocks."""
    make_durable_folder(path.parent)
    path.unlink(missing_ok=True)


def _discard_attempt(path: Path, event: UUID) -> None:
    try:
        archive = ArchiveReader(path)
    except RftdError:  # none, or somebody's: the export refuses a name that is taken
        return
    archive.close()
    if archive.manifest.event == event:
        path.unlink(missing_ok=True)


def _checked(path: Path, experiment: UUID) -> ExperimentArchived:
    archive = ArchiveReader(path)
    try:
        if archive.manifest.experiment != experiment:
            raise ArchiveError(f"it is of experiment {archive.manifest.experiment}", where=str(path))
        check_files(archive, check(archive))
    finally:
        archive.close()
    size_bytes, sha256 = size_and_sha256(path)
    return ExperimentArchived(path=str(path), size_bytes=size_bytes, sha256=sha256)


def _restored(experiment: UUID, spec: ExperimentSpec, path: Path, expected: ExperimentArchived) -> int:
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
