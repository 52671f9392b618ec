"""Artifacts: bytes too large for an event, in files named by their sha256.

Layout: `<root>/<first two digits>/<sha256>`. A file visible under its name is complete and durable: written under a
temporary name, synced and renamed, followed by a sync of the folder. Files are never changed in place.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from rftd.ops import faults
from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import LogCorruptError, NotFoundError, UsageError
from rftd.ops.own_folder import give_umask_rights

ARTIFACTS: Final = "artifacts"
"""The folder of artifacts within a job's folder."""
_NAME = re.compile(r"[0-9a-f]{64}")
"""Form of a sha256 in hex."""


def size_and_sha256(path: Path) -> tuple[int, str]:
    """Returns the size in bytes and the sha256 (hex) of a file, read block by block. Raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


class ArtifactStore:
    """A folder of immutable files named by their digest, usable by several processes at once."""

    def __init__(self, root: Path) -> None:
        """`root` is the folder, created by the first `put`."""
        self.root = root
        """The folder of the files."""

    def put(self, content: bytes) -> str:
        """Stores `content` durably and returns the sha256 (hex). Idempotent."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.path_of(sha256)
        # Equal bytes have equal names, so no writer can overwrite other content: writers need no lock.
        if not self._touch_existing(path, len(content)):
            make_durable_folder(path.parent)
            # A unique temporary name in the same folder: another process may be writing an equal artifact.
            with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
                try:
                    give_umask_rights(file.fileno())
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                    faults.point("artifact.before_rename")
                    os.replace(file.name, path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            faults.point("artifact.after_rename")
        # Another process may have renamed the file without having synced the folder yet.
        sync_folder(path.parent)
        return sha256

    def read(self, sha256: str) -> bytes:
        """Returns the bytes of an artifact. Raises NotFoundError for a missing artifact, LogCorruptError for a wrong
        digest.
        """
        path = self.path_of(sha256)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(
                f"no artifact {sha256}", where=str(path), fix="restore the artifacts that belong to this log"
            ) from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise LogCorruptError(
                f"artifact {sha256} does not match its digest: {len(content)} bytes",
                where=str(path),
                fix="restore the file from a backup; what refers to it cannot be replayed without it",
            )
        return content

    def has(self, sha256: str) -> bool:
        """True if the artifact's file exists; the bytes are not checked."""
        return self.path_of(sha256).is_file()

    def path_of(self, sha256: str) -> Path:
        """Returns the path of an artifact, existing or not. Raises UsageError for any text but a sha256."""
        # Names come from events and URLs: only 64 hexadecimal digits ever become part of a path.
        if not _NAME.fullmatch(sha256):
            raise UsageError(f"{sha256!r} is no sha256", fix="use 64 hexadecimal digits in lower case")
        return self.root / sha256[:2] / sha256

    @staticmethod
    def _touch_existing(path: Path, size_bytes: int) -> bool:
        """True if the file exists with full size; the modification time is then set to now."""
        try:
            # Before the check: garbage collection of unnamed artifacts spares young files, and the artifact may still
            # be unnamed.
            os.utime(path)
            return path.stat().st_size == size_bytes
        except FileNotFoundError:
            return False
