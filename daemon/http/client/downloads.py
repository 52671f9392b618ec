"""`download_checkpoint`: the files of a checkpoint, range by range, checked by their sha256."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from rftd.daemon.http.views import checkpoints
from rftd.daemon.http.views.checkpoints import CheckpointFile
from rftd.ops.errors import DataError

if TYPE_CHECKING:
    from rftd.daemon.http.client.connection import DaemonConnection

_RANGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one request: a lost connection costs no more than this."""
_PART: Final = ".part"
"""Suffix of an unfinished file."""


async def download_checkpoint(connection: DaemonConnection, name: str, step: int, to: Path) -> Path:
    """Downloads the files of a step's checkpoint below `to`, and returns the folder; complete files are kept.

    Raises DataError for a file whose bytes differ from the committed ones.
    """
    answer = (await connection.ask(checkpoints.checkpoint, name=name, step=step)).value
    for file in answer.files:
        if PurePosixPath(file.path).is_absolute() or ".." in PurePosixPath(file.path).parts:
            raise DataError("the checkpoint names a file outside its folder", where=file.path[:200])
        target = to / file.path
        if target.is_file() and target.stat().st_size == file.size_bytes and _sha256_of(target) == file.sha256:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(target.name + _PART)
        await _fetch(connection, name, answer.checkpoint.step, answer.checkpoint.generation, file, unfinished)
        if _sha256_of(unfinished) != file.sha256:
            unfinished.unlink()
            raise DataError("the bytes differ from the committed ones", where=file.path, fix="download it again")
        unfinished.replace(target)
    return to


async def _fetch(
    connection: DaemonConnection, name: str, step: int, generation: int, file: CheckpointFile, part: Path
) -> None:
    """Writes the bytes of a file, from the end of an unfinished one on."""
    with part.open("ab") as sink:
        if sink.tell() > file.size_bytes:
            sink.truncate(0)
        while (offset := sink.tell()) < file.size_bytes:
            last = min(offset + _RANGE_BYTES, file.size_bytes) - 1
            sink.write(
                await connection.bytes_of(
                    checkpoints.checkpoint_file,
                    offset,
                    last,
                    name=name,
                    step=step,
                    generation=generation,
                    path=file.path,
                )
            )


def _sha256_of(path: Path) -> str:
    """Returns the sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
