"""`open_checkpoint_file`: one file of a committed checkpoint, opened without following a link out of the folder."""

from __future__ import annotations

import os
import re
import stat
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from rftd.ops.errors import DataError, NotFoundError
from rftd.storage.files.own_places import checkpoint_folder
from rftd.streams.events.checkpoint import CheckpointCommitted, FileRef
from rftd.streams.spec.spec import ExperimentSpec

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
"""Form of a sha256 in hex."""
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags for opening a folder without following a link."""
# O_NONBLOCK: opening a pipe in the place of a file would wait for its writer.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for opening a file without following a link or waiting."""


class OpenedFile(NamedTuple):
    """An open file of a checkpoint, with the size and the sha256 recorded at the commit."""

    descriptor: int
    """File descriptor, to be closed by the caller."""
    path: str
    """Path within the checkpoint's folder."""
    size_bytes: int
    """Size recorded at the commit."""
    sha256: str
    """Digest recorded at the commit, in hex."""


def open_checkpoint_file(spec: ExperimentSpec, event: CheckpointCommitted, path: str) -> OpenedFile:
    """Opens a file named by a committed checkpoint; the caller closes the descriptor. Blocks.

    Raises NotFoundError for a path not named by the checkpoint, and for a missing file; DataError for a folder or a
    file at a foreign location, and for another size than committed.
    """
    ref = next((ref for ref in event.files if ref.path == path), None)
    if ref is None:
        fix = "see the files of /v1/experiments/NAME/checkpoints/STEP"
        raise NotFoundError(f"the checkpoint of step {event.step} has no file {path[:200]!r}", field="path", fix=fix)
    parts = PurePosixPath(ref.path).parts
    if not parts or "\0" in ref.path or any(name in ("/", "..", ".") for name in parts):
        raise DataError("checkpoint.committed names a file outside its folder", where=ref.path[:200])
    if not _SHA256.fullmatch(ref.sha256):
        raise DataError("checkpoint.committed names no sha256 of the file", where=ref.path[:200])
    folder = checkpoint_folder(spec, event)
    try:
        descriptor = _open_without_links([str(folder), *parts])
    except FileNotFoundError:
        fix = "it was removed or archived after its commit: see rftd get, and rftd restore"
        raise NotFoundError(f"the file {ref.path!r} is no longer there", field="path", fix=fix) from None
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror}", where=ref.path) from error
    try:
        _check_file(descriptor, ref)
    except BaseException:
        os.close(descriptor)
        raise
    return OpenedFile(descriptor, ref.path, ref.size_bytes, ref.sha256)


def _open_without_links(names: list[str]) -> int:
    """Returns the descriptor of a file below a folder, opened name by name without following links."""
    folder = os.open(names[0], _FOLDER_FLAGS)
    try:
        for name in names[1:-1]:
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(names[-1], _FILE_FLAGS, dir_fd=folder)
    finally:
        os.close(folder)


def _check_file(descriptor: int, ref: FileRef) -> None:
    """Raises DataError unless the descriptor is a regular file of the committed size."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise DataError("is no regular file", where=ref.path)
    if status.st_size != ref.size_bytes:
        raise DataError(f"has {status.st_size} bytes; {ref.size_bytes} were committed", where=ref.path)
