"""`Taskset`: random access to the rows of a dataset's files, which are checked once when opened."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rftd.ops import limits
from rftd.ops.errors import DataError
from rftd.ops.logs import Logger
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import locate, tasksets_of
from rftd.workers.datasets.files import taskset_files
from rftd.workers.datasets.record import DatasetRecord
from rftd.workers.datasets.recorded import RecordedRollout, recorded_rollout
from rftd.workers.datasets.row_file import RowFile
from rftd.workers.datasets.table_copies import TableCopies, digest_of, experiment_copies
from rftd.workers.datasets.table_rows import TABLES, TableRows
from rftd.workers.datasets.task import Task, make_task
from rftd.workers.datasets.text_rows import CommaRows, LineRows, ListRows
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.datasets.train_row import TrainRow
from rftd.workers.datasets.train_rows import make_train_rows


class Taskset:
    """The rows of one or several files, in file order and line order; no row stays in memory.

    The files stay open, so that replacing one does not change a running experiment's rows; `digest` shows whether two
    readers see equal bytes.
    """

    def __init__(self, spec: TasksetSpec, files: Sequence[RowFile], digest: str) -> None:
        """`files` are the open files in reading order; `digest` is the sha256 over the bytes of all files."""
        self.spec = spec
        self.digest = digest
        """The sha256 (hex) over the bytes of all files, in reading order, independent of `limit_rows`."""
        self._files = files
        self._first = np.cumsum([0, *(len(file) for file in files)])
        """Number of the first row of each file, and of all rows."""

    @classmethod
    def open(cls, spec: TasksetSpec, copies: TableCopies | None = None) -> Self:
        """Opens the files, and reads every byte once, for the digest and the positions of rows; blocks.

        With `copies`, rows of Parquet and Arrow are read fast in any order, and their bytes only after a change;
        without, rows are best read in ascending order, and nothing is written. Raises DataError, with file and line,
        for a missing or empty taskset and for a line that is no row.
        """
        digest = hashlib.sha256()
        files: list[RowFile] = []
        rows = 0
        try:
            for path in taskset_files(spec):
                rows_left = None if spec.limit_rows is None else max(0, spec.limit_rows - rows)
                files.append(_open_file(path, spec, digest, rows_left))
                rows += len(files[-1])
            if rows == 0:
                raise DataError(
                    f"taskset {spec.name!r} has no rows",
                    where=str(files[0].path),
                    fix="write at least one row" if spec.limit_rows != 0 else "raise limit_rows",
                )
            tables = [file for file in files if isinstance(file, TableRows)]
            if not tables:
                return cls(spec, files, digest.hexdigest())
            mixed = len(tables) < len(files)  # several paths may mix tables and texts
            tables_digest = digest_of(files) if copies is None or mixed else copies.digest(tables)
            if copies is not None:
                copies.map(tables, tables_digest)
            return cls(spec, files, tables_digest)
        except BaseException:
            for file in files:
                file.close()
            raise

    def __len__(self) -> int:
        return int(self._first[-1])

    def row(self, index: int) -> dict[str, Any]:
        """Returns row `index`, from 0, as an object. Raises DataError for a missing row, or if its file was
        overwritten.
        """
        if not 0 <= index < len(self):
            raise DataError(
                f"taskset {self.spec.name!r} has rows 0 to {len(self) - 1}, not {index}", where=self.spec.path
            )
        file = int(np.searchsorted(self._first, index, side="right")) - 1
        return self._files[file].row(index - int(self._first[file]))

    @property
    def first_rows(self) -> list[int]:
        """Index of the first row of each non-empty file, where faults of the file's columns show."""
        firsts = {int(first) for first in self._first[:-1]}
        return sorted(firsts - {len(self)})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Returns an iterator over all rows, in order."""
        return (self.row(index) for index in range(len(self)))

    def task(self, index: int, epoch: int = 0) -> Task:
        """Returns the task of row `index`, for a workflow. Raises DataError, with file and line, for a missing key."""
        record = self.row(index)
        with self.placed(index):
            return make_task(record, spec=self.spec, row=index, epoch=epoch)

    def columns(self, keys: Sequence[str]) -> NDArray[np.float64]:
        """Returns the numbers under the keys, of all rows  # [rows, keys], read-only. Blocks while reading every row.

        Raises DataError, with file and line, for a cell without a number.
        """
        columns = np.empty((len(self), len(keys)))
        for index in range(len(self)):
            record = DatasetRecord(self.row(index), self.spec, index)
            with self.placed(index):
                columns[index] = [record.number(key) for key in keys]
        columns.flags.writeable = False
        return columns

    def train_rows(self, index: int, *, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
        """Returns row `index` as sequences for training. Raises DataError, with file and line, if nothing in it can be
        learned.
        """
        record = self.row(index)
        with self.placed(index):
            return make_train_rows(record, spec=self.spec, row=index, tokenizer=tokenizer, max_model_len=max_model_len)

    def recorded(self, index: int, *, max_model_len: int) -> RecordedRollout:
        """Returns row `index` as a recorded rollout. Raises DataError, with file and line, if it is none."""
        record = self.row(index)
        with self.placed(index):
            return recorded_rollout(DatasetRecord(record, self.spec, index), max_model_len)

    def fault(self, index: int, problem: str) -> DataError:
        """Builds a DataError about row `index`, with file and line."""
        error = DatasetRecord(self.row(index), self.spec, index).error(problem)
        error.where = ", ".join(filter(None, (self._location(index), error.where)))
        return error

    def _location(self, index: int) -> str:
        """Returns file and line, or file and row, of a row."""
        number = int(np.searchsorted(self._first, index, side="right")) - 1
        return self._files[number].place(index - int(self._first[number]))

    @contextmanager
    def placed(self, index: int) -> Iterator[None]:
        """A context adding file and line to a DataError about a row; lines are counted only after an error."""
        try:
            yield
        except DataError as error:
            error.where = ", ".join(filter(None, (self._location(index), error.where)))
            raise

    def locate(self, sequence: int) -> tuple[int, int]:
        """Returns (row, epoch) of the group or planned row at position `sequence` of the experiment's order."""
        return locate(sequence, rows=len(self), selector=self.spec.selector, seed=self.spec.seed)

    @property
    def touched(self) -> bool:
        """True if an open file was written, or its times changed, since its digest was computed."""
        return any(file.touched for file in self._files)

    def present_digest(self) -> str:
        """Computes the digest of the open files' bytes as they are now, and resets `touched` to False; blocks."""
        # Before the bytes are read: a write in between leaves the stamp old, and the files are read again.
        stamps = [file.present_stamp() for file in self._files]
        digest = hashlib.sha256()
        for file in self._files:
            for chunk in file.chunks():
                digest.update(chunk)
        self.digest = digest.hexdigest()
        for file, stamp in zip(self._files, stamps, strict=True):
            file.stamp = stamp  # last, so that nobody takes the old digest for the new bytes'
        return self.digest

    def close(self) -> None:
        """Closes the files; rows cannot be read afterwards. Idempotent."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenTasksets:
    """The tasksets used by a process, each opened once."""

    def __init__(self, log: Logger) -> None:
        """Copies of table files are announced in `log`."""
        self._log = log
        self._copies: TableCopies | None = None
        """Memory-mapped copies of the experiment's table files; None before `copy`."""
        self._tasksets: list[Taskset] = []
        """The open tasksets."""
        self._opening = asyncio.Lock()
        """Held while a taskset is opened."""

    async def get(self, spec: TasksetSpec, digest: str) -> Taskset:
        """Returns the taskset, opening it if necessary. Raises DataError if its digest is not `digest`; an empty
        `digest` fits any.
        """
        taskset = self._find(spec) or await self._open_file(spec)
        present_digest = await asyncio.to_thread(taskset.present_digest) if taskset.touched else taskset.digest
        if digest and present_digest != digest:
            raise DataError(
                f"taskset {spec.name!r} has digest {present_digest}, the experiment was accepted with {digest}",
                where=spec.path,
                fix="restore the file, or submit a new experiment",
            )
        return taskset

    async def copy(self, spec: ExperimentSpec) -> None:
        """Opens the tasksets of Parquet and Arrow files, and copies them; takes minutes, and so comes before the first
        lease.
        """
        self._copies = experiment_copies(spec.job_dir, self._log)
        for stage in spec.stages:
            for taskset in (*tasksets_of(stage), *stage.evals):
                if await asyncio.to_thread(_has_tables, taskset):
                    await self._open_file(taskset)

    async def _open_file(self, spec: TasksetSpec) -> Taskset:
        """Returns the taskset, opened now unless it is open already."""
        async with self._opening:  # many leases come at once, and a large file is read for its digest once
            opened = self._find(spec)
            if opened is None:
                opened = await asyncio.to_thread(Taskset.open, spec, self._copies)
                self._tasksets.append(opened)
            return opened

    def _find(self, spec: TasksetSpec) -> Taskset | None:
        # By the whole spec: tasksets of two stages may share a name, or a file read in two ways.
        """Returns the open taskset of this spec; None without one."""
        return next((taskset for taskset in self._tasksets if taskset.spec == spec), None)


def _open_file(path: Path, spec: TasksetSpec, digest: hashlib._Hash, limit_rows: int | None) -> RowFile:
    """Returns the rows of a file; the text is added to the digest, while tables are digested by their stamps."""
    if path.suffix in TABLES:
        return TableRows(path, limit_rows)
    match path.suffix:
        case ".csv":
            return CommaRows(path, digest, limit_rows, spec.format.label_key)
        case ".json" if not _begins_with_object(path):
            return ListRows(path, digest, limit_rows)
    return LineRows(path, digest, limit_rows)


def _has_tables(spec: TasksetSpec) -> bool:
    """True if a file of the taskset is Parquet or Arrow."""
    if not spec.path:  # tasks of a serving stage have no file
        return False
    try:
        return any(path.suffix in TABLES for path in taskset_files(spec))
    except DataError:  # the first lease raises it again
        return False


def _begins_with_object(path: Path) -> bool:
    # Many files called .json on hubs are JSON Lines.
    """True if a .json file begins with an object, so is JSON Lines."""
    try:
        with path.open("rb") as file:
            return file.read(limits.MIB).lstrip()[:1] == b"{"
    except OSError:
        return False  # the opening raises the reason
