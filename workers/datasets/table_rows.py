"""Rows of Parquet and Arrow files, read in place. `pyarrow` is imported at the first opening of such a file."""

from __future__ import annotations

import io
import math
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rftd.ops import limits
from rftd.ops.errors import DataError
from rftd.ops.extras import DATA, check_extra
from rftd.workers.datasets.row_file import RowFile

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer

TABLES: Final = (".parquet", ".arrow")
"""Suffixes of table files."""
BATCH_ROWS: Final = 1000
"""Rows decoded at once during a pass over a file."""
_READS_BEFORE_RELEASE: Final = 256
"""Number of reads of a copy after which its pages are released from memory."""
_MAGIC: Final = b"ARROW1"
"""First bytes of an Arrow file; an Arrow stream does not begin with them."""


class TableRows(RowFile):
    """A Parquet or Arrow file. Rows in ascending order are read fast; any other order reads much for each row.

    Columns of bytes (images, sounds) are left out, because nothing here can use them.
    """

    def __init__(self, path: Path, limit_rows: int | None) -> None:
        """Opens the file; rows behind `limit_rows` are not used. Raises DataError."""
        check_extra(DATA, f"the dataset file {path.name}")
        super().__init__(path)
        self._lock = threading.Lock()
        """Held while rows are read."""
        self._mapped: MappedRows | None = None
        """Copy to read from; None before `use`."""
        try:
            with self._readable():
                self._source = (_ParquetSource if path.suffix == ".parquet" else _ArrowSource)(self._handle.fileno())
                self._check_columns()
        except BaseException:
            self.close()
            raise
        # The first row of each group, and behind them the number of rows.
        self._firsts = np.cumsum([0, *self._source.rows])
        """Number of the first row of each group, and of all rows."""
        self._rows = int(self._firsts[-1]) if limit_rows is None else min(limit_rows, int(self._firsts[-1]))
        """Number of rows in use."""
        self._group = -1
        """Group of the open pass; -1 without one."""
        self._first = 0
        """Number of the first row in `_batch`."""
        self._batch: pa.RecordBatch | None = None
        """Batch read last; None before the first."""
        self._batches: Iterator[pa.RecordBatch] = iter(())
        """Further batches of the group."""

    def __len__(self) -> int:
        return self._rows

    @property
    def size_bytes(self) -> int:
        """Estimated size of the rows in bytes, as an Arrow file."""
        return self._source.size_bytes

    def use(self, mapped: MappedRows) -> None:
        """Reads from the memory-mapped copy `mapped` from now on, fast in any order of rows."""
        self._mapped = mapped

    def row(self, index: int) -> dict[str, Any]:
        """Returns the row as an object; see `RowFile.row`."""
        with self._readable(index):
            if self._mapped is not None:
                return row_of(*self._mapped.batch(index), self.place(index))
            with self._lock:
                batch, number = self._batch_of(index)
            return row_of(batch, number, self.place(index))

    def _batch_of(self, index: int) -> tuple[pa.RecordBatch, int]:
        """Returns the batch with a row, reading on from the last one if possible, and the row's index within it."""
        group = int(np.searchsorted(self._firsts, index, side="right")) - 1
        if self._batch is None or group != self._group or index < self._first:
            self._batches = self._source.batches(group)
            self._batch = next(self._batches)
            self._group = group
            self._first = int(self._firsts[group])
        while index >= self._first + self._batch.num_rows:
            self._first += self._batch.num_rows
            self._batch = next(self._batches)
        return self._batch, index - self._first

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows of the file, in order. Raises DataError."""
        for group in range(len(self._source.rows)):
            with self._readable(int(self._firsts[group])):
                yield from self._source.batches(group)

    def place(self, index: int) -> str:
        """Returns `file row N` of a row, from 0."""
        return f"{self.path} row {index}"

    def close(self) -> None:
        """Closes the file; rows cannot be read afterwards. Idempotent."""
        super().close()
        if self._mapped is not None:
            self._mapped.close()

    def _check_columns(self) -> None:
        """Raises DataError for two columns of one name, or without a usable column."""
        names = self._source.names
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise DataError(f"two columns are named {twice[0]!r}", where=str(self.path), fix="rename one of them")
        if not names:
            raise DataError("every column of the file has bytes", where=str(self.path), fix="name another file")

    def _broken_column(self, index: int | None) -> str:
        """Returns the first unreadable column in the group of a row; empty if each column is readable by itself."""
        if index is None:
            return ""
        group = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return next((name for name in self._source.names if not self._source.has_column(group, name)), "")

    @contextmanager
    def _readable(self, index: int | None = None) -> Iterator[None]:
        """Turns pyarrow's errors about a broken file, or about the group of a row, into a DataError."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
            cause = " ".join(str(error).split()) or "it ends too early"
            column = self._broken_column(index)
            raise DataError(
                f"file is not readable as {self.path.suffix[1:]}{column and f' in column {column!r}'}: {cause}",
                where=str(self.path) if index is None else self.place(index),
                fix="copy or write the file again",
            ) from None


class MappedRows:
    """A memory-mapped Arrow file in batches of `BATCH_ROWS` rows; only recently read rows occupy memory."""

    def __init__(self, path: Path) -> None:
        """Maps the copy at `path` into memory. Raises FileNotFoundError for a missing copy."""
        import pyarrow as pa

        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._buffered_reader: pa.RecordBatchFileReader | None = pa.ipc.open_file(pa.py_buffer(self._map))
        """Reader of the copy; None once closed."""
        self._lock = threading.Lock()
        """Held while a batch is read."""
        self._reads = 0
        """Number of batches read so far; mapped pages are released at every multiple of `_READS_BEFORE_RELEASE`."""

    def batch(self, index: int) -> tuple[pa.RecordBatch, int]:
        """Returns the batch containing row `index`, and the row's index within the batch."""
        with self._lock:
            if self._buffered_reader is None:
                raise ValueError("it was closed")
            self._reads += 1
            if self._reads % _READS_BEFORE_RELEASE == 0:
                # Each read maps pages around it, counted for this process until released: with rows in any order,
                # finally the whole file. They stay in the kernel's cache.
                self._map.madvise(mmap.MADV_DONTNEED)
            return self._buffered_reader.get_batch(index // BATCH_ROWS), index % BATCH_ROWS

    def close(self) -> None:
        """Closes the file. Idempotent."""
        with self._lock:
            self._buffered_reader = None
        with suppress(BufferError):  # a read under way holds it a moment longer
            self._map.close()


class _ParquetSource:
    """A Parquet file, with its groups of rows."""

    def __init__(self, descriptor: int) -> None:
        """Reads the metadata of an open file."""
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(_buffered_reader(descriptor), buffer_size=limits.MIB, pre_buffer=False)
        """The Parquet file."""
        groups = [self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups)]
        self.rows = [group.num_rows for group in groups]
        """Number of rows of each group."""
        self.size_bytes = sum(group.total_byte_size for group in groups)
        """Bytes of the uncompressed rows."""
        self.names = _usable_columns(self._file.schema_arrow)
        """Usable columns."""

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a group, in order."""
        yield from self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=self.names, use_threads=False)

    def has_column(self, group: int, name: str) -> bool:
        """True if a column of a group can be read by itself."""
        import pyarrow as pa

        try:
            for _ in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False):
                pass
        except (pa.ArrowException, OSError, ValueError):
            return False
        return True


class _ArrowSource:
    """An Arrow file or stream, treated as one group of rows."""

    def __init__(self, descriptor: int) -> None:
        """Counts the rows of an open file."""
        self._descriptor = descriptor
        with self._open() as reader:
            self.names = _usable_columns(reader.schema)
        self.rows = [sum(batch.num_rows for batch in self.batches(0))]
        """Number of rows, as a list of one."""
        self.size_bytes = os.fstat(descriptor).st_size
        """Size of the file in bytes."""

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the file, in order."""
        with self._open() as reader:
            count = getattr(reader, "num_record_batches", None)
            whole = reader if count is None else (reader.get_batch(number) for number in range(count))
            for batch in whole:
                if batch.num_rows:
                    yield batch.select(self.names)

    def has_column(self, _group: int, _name: str) -> bool:
        """True: columns of an Arrow file are not readable one by one, so every column counts as readable."""
        return True

    def _open(self) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
        """Opens the file or stream for one pass."""
        import pyarrow as pa

        # Read, not mapped: a file truncated by another process while mapped would end this process.
        file = _buffered_reader(self._descriptor)
        magic = file.read(len(_MAGIC))
        file.seek(0)
        return pa.ipc.open_file(file) if magic == _MAGIC else pa.ipc.open_stream(file)


class _PositionedFile(io.RawIOBase):
    """A file by its descriptor with its own position, so that readers of one descriptor do not move each other."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` stays open and is not moved."""
        super().__init__()
        self._descriptor = descriptor
        self._offset = 0
        """Position of the next read."""

    def readable(self) -> bool:
        """Returns True, because the file was opened for reading."""
        return True

    def seekable(self) -> bool:
        """Returns True, because the position can be moved."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Reads from the position into the buffer; returns the number of bytes."""
        count = os.preadv(self._descriptor, [buffer], self._offset)
        self._offset += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position; returns the new one."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset}.get(whence)
        self._offset = offset + (os.fstat(self._descriptor).st_size if start is None else start)
        return self._offset


def _buffered_reader(descriptor: int) -> io.BufferedReader:
    """Returns a buffered reader from the beginning of a file."""
    return io.BufferedReader(_PositionedFile(descriptor), limits.MIB)


def _usable_columns(schema: pa.Schema) -> list[str]:
    """Returns the names of the columns without bytes, at any depth."""
    return [field.name for field in schema if not _holds_bytes(field.type)]


def _holds_bytes(kind: pa.DataType) -> bool:
    """True for a type with bytes at any depth."""
    import pyarrow as pa

    of_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    if any(is_kind(kind) for is_kind in of_bytes):
        return True
    return any(_holds_bytes(kind.field(number).type) for number in range(kind.num_fields))


def row_of(batch: pa.RecordBatch, number: int, where: str) -> dict[str, Any]:
    """Returns row `number` of a batch as a JSON object; `where` names the row in errors. Raises DataError if it is too
    large.
    """
    single = batch.slice(number, 1)
    if single.nbytes > limits.TASKSET_ROW_SIZE_BYTES:
        raise DataError(
            f"row is larger than {limits.TASKSET_ROW_SIZE_BYTES} bytes",
            where=where,
            fix="shorten the row; store large content in separate files",
        )
    row = single.to_pylist(maps_as_pydicts="lossy")[0]
    return {name: plain_value(cell) for name, cell in row.items()}


def plain_value(cell: Any) -> Any:
    """Converts a cell to a JSON value: NaN and infinities become None, and a structure keeps only the row's
    own fields.
    """
    match cell:
        case float():
            return cell if math.isfinite(cell) else None
        case dict():
            # Structures of one column have the fields of all its rows; fields of other rows are null in this one.
            return {str(name): plain_value(field) for name, field in cell.items() if field is not None}
        case list():
            return [plain_value(element) for element in cell]
        case date() | time():
            return cell.isoformat()
        case timedelta():
            return cell.total_seconds()
        case Decimal():
            return str(cell)
    return cell
