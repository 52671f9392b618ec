"""Snapshots: folds in files, the newest two kept; used only in agreement with the log.

A snapshot of more than the log holds, or of another experiment, is a witness: set aside, never removed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from rftd.ops import faults
from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import CodecError, LogCorruptError, LogLossError
from rftd.ops.logs import Logger
from rftd.streams.folds.snapshot import Nothing, Snapshot, unpack
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition

P = TypeVar("P", bound=msgspec.Struct)
"""Type of a snapshot's parts."""

FOLDER: Final = "snapshots"
"""Name of the folder of snapshots in a job's folder."""
KEPT_SNAPSHOTS: Final = 2
"""Number of snapshots kept: if the newest is damaged, the previous one still saves most of the folding."""
ASIDE: Final = ".aside"
"""Suffix of a snapshot kept as a witness only."""
_NAME: Final = re.compile(r"[0-9]{16}\.fold")
"""Form of a snapshot's file name."""


class SnapshotFolder:
    """A folder of snapshots of a fold; a single process writes, others may read."""

    def __init__(self, folder: Path) -> None:
        """`folder` is created by the first write."""
        self.folder = folder
        """The folder of the files."""

    def write(self, packed: bytes, records: int) -> Path:
        """Writes a snapshot durably and returns the path. `records` is the sort key; older snapshots are removed.
        Blocks.
        """
        make_durable_folder(self.folder)
        path = self.folder / f"{records:016d}.fold"  # fixed width, so that names sort like their numbers
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("wb") as file:
            file.write(packed)
            file.flush()
            os.fsync(file.fileno())
        faults.point("snapshot.before_rename")
        temporary.replace(path)
        sync_folder(self.folder)
        faults.point("snapshot.after_rename")
        # Only after the new snapshot is durable: a crash at any moment leaves at least one whole snapshot.
        for old in self.newest_first()[KEPT_SNAPSHOTS:]:
            old.unlink(missing_ok=True)
        return path

    def newest_first(self) -> list[Path]:
        """Returns the paths of the snapshots, those with most records first. Blocks."""
        try:
            return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
        except OSError:
            return []


async def believed(
    log: EventLog,
    source: SnapshotFolder,
    kind: type[Snapshot[P]],
    *,
    experiment: UUID | None,
    partitions: Iterable[Partition] | None = None,
    logger: Logger,
    discard: bool = False,
) -> Snapshot[P] | None:
    """Returns the newest intact snapshot of the experiment with all heads in the log; None without any.

    Only `partitions` are compared, if given. Each rejected snapshot is logged with the reason. With `discard`, for the
    snapshots' owner, rejected files no longer block better ones: removed if unreadable, set aside if with heads.
    """
    compared = None if partitions is None else dict.fromkeys(partitions, 0)
    for path in await asyncio.to_thread(source.newest_first):
        try:
            snapshot = await asyncio.to_thread(_read_snapshot, path, kind)
            if snapshot.experiment != experiment:
                raise LogLossError(f"it is of {snapshot.experiment or 'a whole log'}")
            await log.check_heads(snapshot.heads(compared))
        except FileNotFoundError:
            continue
        except (OSError, CodecError, LogLossError, LogCorruptError) as error:
            reason = error.what if isinstance(error, CodecError | LogLossError | LogCorruptError) else str(error)
            logger.warning("snapshot.ignored", path=str(path), reason=reason)
            if discard and not isinstance(error, OSError):  # a disk that does not answer says nothing about the file
                await asyncio.to_thread(_put_aside if await asyncio.to_thread(_remembers, path) else _remove_file, path)
            continue
        logger.info("snapshot.used", path=str(path), records=sum(mark.next_offset for mark in snapshot.marks))
        return snapshot
    return None


def _remembers(path: Path) -> bool:
    """True if the file remembers heads of the log, even in another snapshot version."""
    try:
        return bool(_read_snapshot(path, Snapshot[Nothing]).marks)
    except (OSError, CodecError):
        return False


def _remove_file(path: Path) -> None:
    """Deletes a file; a missing one is no error."""
    path.unlink(missing_ok=True)


def put_memory_aside(job_dir: Path) -> Path | None:
    """Moves an experiment's memories of the former log aside. Returns the new folder; None without memories.

    The experiment continues in the log of the import: memories of the former log are kept, but do not apply here.
    Blocks.
    """
    folder = job_dir / FOLDER
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    aside = folder.with_name(f"{FOLDER}.before-import")
    number = 1
    while aside.exists():
        number += 1
        aside = folder.with_name(f"{FOLDER}.before-import{number}")
    folder.rename(aside)  # not removed: it is a witness of the former log
    sync_folder(job_dir)
    return aside


def _put_aside(path: Path) -> None:
    """Renames a snapshot to a free name for witnesses, which the search for survivors reads too."""
    aside = path.with_name(path.name + ASIDE)
    number = 0
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{ASIDE}{number}")
    path.rename(aside)


def _read_snapshot(path: Path, kind: type[Snapshot[P]]) -> Snapshot[P]:
    """Returns the snapshot in a file. Raises OSError, CodecError."""
    return unpack(path.read_bytes(), kind)
