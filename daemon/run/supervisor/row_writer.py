"""`RowWriter`: a file of rows, named after its content and kept for experiments."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.storage.files.table_files import table_name


class RowWriter:
    """Writes rows to a temporary file, kept by `finish` under a name made from the digest: equal rows share a file. As
    a context, deletes the temporary file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """`name` begins the name of the file in `folder`, made if missing."""
        make_durable_folder(folder)
        self._folder = folder
        self._name = name
        self._digest = hashlib.sha256()
        """Digest of the rows written so far."""
        self._file = tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp")  # noqa: SIM115 - closed by __exit__
        """Temporary file, deleted at the end of the block; `finish` links its content under the final name."""
        self.rows = 0
        """Number of rows written."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes a row as one line of JSON, and counts it."""
        line = msgspec.json.encode(row) + b"\n"
        self._digest.update(line)
        self._file.write(line)
        self.rows += 1

    def finish(self) -> Path:
        """Syncs the rows to the disk, and returns their file, named after the content; an equal file written before is
        kept instead.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        path = self._folder / table_name(self._name, self._digest.hexdigest())
        if not path.exists():  # named after its content: a file of another submission is identical
            os.link(self._file.name, path)
            path.chmod(0o644 & ~_umask())
        os.utime(path)  # in use again, though not yet named by an event
        sync_folder(self._folder)
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _umask() -> int:
    """Returns the process's mask for modes of new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
