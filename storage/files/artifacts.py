"""Artifacts: bytes too large for an event, in files named by their sha256.

Layout: `<root>/<first two digits>/<sha256>`. A file that is visible under its name is complete and durable: it is
written beside, made durable, renamed, and then its folder is made durable. Nothing is ever changed in place.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from tempfile import NamedTemporaryFile

from rftd.ops import faults
from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import LogCorruptError, NotFoundError, UsageError
from rftd.ops.own_folder import give_umask_rights

_NAME = re.compile(r"[0-9a-f]{64}")


def size_and_sha256(path: Path) -> tuple[int, str]:
    """The size in bytes and the sha256 (hex) of a file, read a block at a time. Raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


class ArtifactStore:
    """A folder of immutable files. Several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, data: bytes) -> str:
        """The sha256 (hex) of `data`, which is on disk when this returns. Idempotent."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path_of(sha256)
        # Equal bytes have one name, so nobody can overwrite anything else: writers need no lock.
        if not self._renews(path, len(data)):
            make_durable_folder(path.parent)
            # A name of its own in the same folder: another process may be writing the same artifact.
            with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
                try:
                    give_umask_rights(file.fileno())
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    faults.point("artifact.before_rename")
                    os.replace(file.name, path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            faults.point("artifact.after_rename")
        # Another process may have renamed it and not yet made the name durable.
        sync_folder(path.parent)
        return sha256

    def read(self, sha256: str) -> bytes:
        """The bytes. Raises NotFoundError if there are none, LogCorruptError if they do not match their name."""
        path = self.path_of(sha256)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(
                f"no artifact {sha256}", where=str(path), fix="restore the artifacts that belong to this log"
            ) from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise LogCorruptError(
                f"artifact {sha256} does not match its digest: {len(data)} bytes",
                where=str(path),
                fix="restore the file from a backup; what refers to it cannot be replayed without it",
            )
        return data

    def has(self, sha256: str) -> bool:
        """True if the artifact is here; its bytes are not checked."""
        return self.path_of(sha256).is_file()

    def path_of(self, sha256: str) -> Path:
        """The path at which the artifact is or would be. Raises UsageError for a text that is no sha256."""
        # Names come from events and URLs: nothing but 64 digits ever becomes part of a path.
        if not _NAME.fullmatch(sha256):
            raise UsageError(f"{sha256!r} is no sha256", fix="use 64 hexadecimal digits in lower case")
        return self.root / sha256[:2] / sha256

    @staticmethod
    def _renews(path: Path, size_bytes: int) -> bool:
        """True if the file is there, whole; it then counts as written now."""
        try:
            # Before the look: the removal of artifacts that no event names spares young ones, and no event may name
            # this one yet.
            os.utime(path)
            return path.stat().st_size == size_bytes
        except FileNotFoundError:
            return False
