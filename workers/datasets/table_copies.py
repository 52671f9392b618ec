"""`TableCopies`: Parquet and Arrow files as memory-mapped Arrow, for direct access to any row without caching rows."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.durable import make_durable_folder, sync_folder, write_durable
from rftd.ops.errors import DataError
from rftd.ops.logs import Logger
from rftd.storage.files.unreferenced import DATASETS
from rftd.workers.datasets.row_file import FileStamp, RowFile
from rftd.workers.datasets.table_rows import BATCH_ROWS, MappedRows, TableRows

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION: Final = 1
"""Version of a copy's format, part of its file name: copies of other versions are written again."""
_LOGGED_FROM_BYTES: Final = 256 * limits.MIB
"""Size in bytes from which the start of a copy is logged."""
_PACE_BYTES_S: Final = 100 * 10**6
"""Usual speed of copying, for the announcement."""
_SETTLED_NS: Final = 10**9
"""Nanoseconds before the note of a digest within which a file may change again without a new modification time."""


class _DigestNote(msgspec.Struct, frozen=True):
    """The digest of files with these stamps."""

    stamps: list[tuple[str, FileStamp]]
    """Path and stamp of each file."""
    digest: str
    """The sha256 over all files, in hex."""


class TableCopies:
    """Memory-mapped Arrow copies of one experiment's Parquet and Arrow files, shared by its processes.

    A copy is written under a unique name and then renamed, so that any process may write it.
    """

    def __init__(self, folder: Path, log: Logger) -> None:
        """Copies are written to `folder`."""
        self._folder = folder
        self._log = log

    def digest(self, files: Sequence[TableRows]) -> str:
        """Returns the sha256 over the bytes of all files; files with unchanged stamps are not read again."""
        stamps = [(str(file.path), file.stamp) for file in files]
        name = hashlib.sha256(msgspec.json.encode(stamps)).hexdigest()[:32]
        note = self._folder / f"{name}.json"
        if (noted := _read_note(note)) is not None and noted.stamps == stamps and _is_settled(note, files):
            return noted.digest
        digest = digest_of(files)
        if all(file.present_stamp() == file.stamp for file in files):
            make_durable_folder(self._folder)
            write_durable(note, msgspec.json.encode(_DigestNote(stamps, digest)))
        return digest

    def map(self, files: Sequence[TableRows], digest: str) -> None:
        """Makes the files read from copies, after writing missing copies. Blocks; raises DataError."""
        for number, file in enumerate(files):
            file.use(self._map_copy(file, self._folder / f"{digest[:32]}-{number}.v{_VERSION}.arrow"))

    def _map_copy(self, file: TableRows, path: Path) -> MappedRows:
        """Returns the copy, written if missing."""
        while True:
            if not path.exists():
                with self._writing_lock(path):
                    if not path.exists():
                        self._write_copy(file, path)
            with suppress(FileNotFoundError):  # removed just now by a daemon, because its experiment ended
                return MappedRows(path)

    @contextmanager
    def _writing_lock(self, path: Path) -> Iterator[None]:
        """Lets one process at a time write a copy, and deletes files left behind by a killed one."""
        make_durable_folder(self._folder)
        with ExitStack() as stack:
            # A file system without locks, or another user's lock: at worst, copies are written twice.
            with suppress(OSError):
                lock = stack.enter_context(path.with_name(f".{path.name}.lock").open("ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
                for stale in self._folder.glob(f".{path.name}.*.tmp"):
                    stale.unlink(missing_ok=True)
            yield

    def _write_copy(self, file: TableRows, path: Path) -> None:
        """Writes the copy under a temporary name, makes it durable and renames it. Raises DataError if the file
        changes.
        """
        import pyarrow as pa

        if file.size_bytes >= _LOGGED_FROM_BYTES:
            self._log.info(
                "taskset.copying",
                file=str(file.path),
                to=str(path),
                size_bytes=file.size_bytes,
                expected_s=round(file.size_bytes / _PACE_BYTES_S),
            )
        temporary = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as sink:
                batches = even(file.batches())
                first = next(batches)
                with pa.ipc.new_file(sink, first.schema) as writer:
                    writer.write_batch(first)
                    for batch in batches:
                        writer.write_batch(batch)
                sink.flush()
                os.fsync(sink.fileno())
            if file.touched:
                raise DataError("the file was changed while it was read", where=str(file.path), fix="submit again")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._folder)


def experiment_copies(job_dir: str, log: Logger) -> TableCopies:
    """Returns the copies of the experiment with this folder."""
    return TableCopies(Path(job_dir) / DATASETS, log)


def digest_of(files: Sequence[RowFile]) -> str:
    """Returns the sha256 (hex) over the bytes of all files, in order; reads them."""
    digest = hashlib.sha256()
    for file in files:
        for chunk in file.chunks():
            digest.update(chunk)
    return digest.hexdigest()


def even(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Regroups the rows into batches of exactly `BATCH_ROWS`, except the last."""
    import pyarrow as pa

    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows < BATCH_ROWS:
            continue
        joined = pa.concat_batches(gathered) if len(gathered) > 1 else batch
        whole = rows - rows % BATCH_ROWS
        for start in range(0, whole, BATCH_ROWS):
            yield joined.slice(start, BATCH_ROWS)
        gathered = [joined.slice(whole)] if rows > whole else []
        rows -= whole
    if gathered:
        yield pa.concat_batches(gathered)


def _read_note(note: Path) -> _DigestNote | None:
    """Returns the noted digest; None for a missing or damaged note."""
    try:
        return json_decoder(_DigestNote).decode(note.read_bytes())
    except (*UNREADABLE, OSError):
        return None


def _is_settled(note: Path, files: Sequence[TableRows]) -> bool:
    """True if no file had just been changed when the digest was noted."""
    noted_ns = note.stat().st_mtime_ns
    return all(noted_ns - file.stamp.changed_ns > _SETTLED_NS for file in files)
