"""Snapshots: folds in files, of which the newest two stay, and which are believed only where the log agrees.

A snapshot that remembers more than the log holds, or another experiment, is a witness: it is put aside and never
removed.
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

FOLDER: Final = "snapshots"
KEPT: Final = 2
"""The snapshots that stay: the newest may be damaged, and then the one before it saves most of the folding."""
ASIDE: Final = ".aside"
_NAME: Final = re.compile(r"[0-9]{16}\.fold")


class SnapshotFolder:
    """A folder of snapshots of one fold; one process writes it, others may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, data: bytes, records: int) -> Path:
        """The file, durable when this returns. `records` orders it among its kind; older ones are removed. Blocks."""
        make_durable_folder(self.folder)
        path = self.folder / f"{records:016d}.fold"  # of one width, so that names sort as their numbers do
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        faults.point("snapshot.before_rename")
        temporary.replace(path)
        sync_folder(self.folder)
        faults.point("snapshot.after_rename")
        # Only after the new one is durable: a crash at any moment leaves at least one whole snapshot.
        for old in self.newest_first()[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def newest_first(self) -> list[Path]:
        """The snapshots, the one of most records first. Blocks."""
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
    """The newest snapshot that is whole, of this experiment, and whose heads are in the log; None if there is none.

    Only `partitions` are compared, if they are given. A snapshot that is passed over is logged with the reason. With
    `discard`, its owner's, it is taken away, so that it takes no better one's place: removed if it cannot be read, put
    aside if it remembers heads.
    """
    wanted = None if partitions is None else dict.fromkeys(partitions, 0)
    for path in await asyncio.to_thread(source.newest_first):
        try:
            snapshot = await asyncio.to_thread(_read, path, kind)
            if snapshot.experiment != experiment:
                raise LogLossError(f"it is of {snapshot.experiment or 'a whole log'}")
            await log.check_heads(snapshot.heads(wanted))
        except FileNotFoundError:
            continue
        except (OSError, CodecError, LogLossError, LogCorruptError) as error:
            reason = error.what if isinstance(error, CodecError | LogLossError | LogCorruptError) else str(error)
            logger.warning("snapshot.ignored", path=str(path), reason=reason)
            if discard and not isinstance(error, OSError):  # a disk that does not answer says nothing of the file
                await asyncio.to_thread(_put_aside if await asyncio.to_thread(_remembers, path) else _remove, path)
            continue
        logger.info("snapshot.used", path=str(path), records=sum(mark.next_offset for mark in snapshot.marks))
        return snapshot
    return None


def _remembers(path: Path) -> bool:
    """True if the file tells of the log's heads, be it of another version."""
    try:
        return bool(_read(path, Snapshot[Nothing]).marks)
    except (OSError, CodecError):
        return False


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def put_memory_aside(job_dir: Path) -> Path | None:
    """Moves an experiment's memories of its former log aside. Returns their new folder; None if there are none.

    The experiment goes on in the log that it is imported into: its memories of the former one are kept, and say nothing
    here. Blocks.
    """
    folder = job_dir / FOLDER
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    aside = folder.with_name(f"{FOLDER}.before-import")
    number = 1
    while aside.exists():
        number += 1
        aside = folder.with_name(f"{FOLDER}.before-import{number}")
    folder.rename(aside)  # and not removed: it is a witness, if the former log is ever asked
    sync_folder(job_dir)
    return aside


def _put_aside(path: Path) -> None:
    """Renames a snapshot to a free name that is no snapshot's; the search for survivors reads it too."""
    aside = path.with_name(path.name + ASIDE)
    number = 0
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{ASIDE}{number}")
    path.rename(aside)


def _read(path: Path, kind: type[Snapshot[P]]) -> Snapshot[P]:
    return unpack(path.read_bytes(), kind)
