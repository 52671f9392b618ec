"""`Taskset`: random access to the rows of jsonl files, checked once when they are opened."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
import math
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE
from rftd.ops.errors import DataError
from rftd.streams.row_order import locate
from rftd.streams.spec import TasksetSpec
from rftd.workers.tasksets.files import taskset_files
from rftd.workers.tasksets.task import Task, make_task
from rftd.workers.tasksets.tokenizer import Tokenizer
from rftd.workers.tasksets.train_row import TrainRow
from rftd.workers.tasksets.train_rows import make_train_rows


class Taskset:
    """Rows in file order and line order; blank lines do not count.

    Only the places of the rows are in memory. The files stay open, so that replacing one does not change the rows of a
    running experiment; `digest` tells two readers whether they read the same bytes.
    """

    def __init__(self, spec: TasksetSpec, files: list[_File], digest: str) -> None:
        self.spec = spec
        self.digest = digest
        """The sha256 (hex) over the bytes of all files, in reading order, whatever `limit_rows` says."""
        self._files = files
        self._first = np.cumsum([0, *(len(file.places) for file in files)])

    @classmethod
    def open(cls, spec: TasksetSpec) -> Self:
        """Reads every byte once, for the digest and the places of the rows; blocks for as long as that takes.

        Raises DataError, with file and line, for a missing or empty taskset and for a line that is no JSON object.
        """
        digest = hashlib.sha256()
        files: list[_File] = []
        rows = 0
        try:
            for path in taskset_files(spec):
                left = None if spec.limit_rows is None else max(0, spec.limit_rows - rows)
                files.append(_File(path, digest, left))
                rows += len(files[-1].places)
            if rows == 0:
                raise DataError(
                    f"taskset {spec.name!r} has no rows",
                    where=str(files[0].path),
                    fix="write at least one JSON object per line" if spec.limit_rows != 0 else "raise limit_rows",
                )
        except BaseException:
            for file in files:
                file.close()
            raise
        return cls(spec, files, digest.hexdigest())

    def __len__(self) -> int:
        return int(self._first[-1])

    def row(self, index: int) -> dict[str, Any]:
        """The object on row `index`, from 0. Raises DataError if there is no such row or its file was overwritten."""
        if not 0 <= index < len(self):
            raise DataError(
                f"taskset {self.spec.name!r} has rows 0 to {len(self) - 1}, not {index}", where=self.spec.path
            )
        file = int(np.searchsorted(self._first, index, side="right")) - 1
        return self._files[file].row(index - int(self._first[file]))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, in order."""
        return (self.row(index) for index in range(len(self)))

    def task(self, index: int, epoch: int = 0) -> Task:
        """The task of row `index`, as a workflow sees it. Raises DataError, with file and line, if a key is missing."""
        record = self.row(index)
        with self._placed(index):
            return make_task(record, spec=self.spec, row=index, epoch=epoch)

    def train_rows(self, index: int, *, tokenizer: Tokenizer, max_model_len: int) -> tuple[TrainRow, ...]:
        """The sequences to learn from row `index`. Raises DataError, with file and line, if it teaches nothing."""
        record = self.row(index)
        with self._placed(index):
            return make_train_rows(record, spec=self.spec, row=index, tokenizer=tokenizer, max_model_len=max_model_len)

    @contextmanager
    def _placed(self, index: int) -> Iterator[None]:
        """Adds file and line to a DataError about a row; the lines are counted only then."""
        try:
            yield
        except DataError as error:
            file = int(np.searchsorted(self._first, index, side="right")) - 1
            error.where = ", ".join(filter(None, (self._files[file].line(index - int(self._first[file])), error.where)))
            raise

    def locate(self, sequence: int) -> tuple[int, int]:
        """The row and epoch of the group or item at this place of the experiment."""
        return locate(sequence, rows=len(self), selector=self.spec.selector, seed=self.spec.seed)

    @property
    def touched(self) -> bool:
        """True if an open file was written to, or its times were changed, since the last look."""
        return any(file.stamp != file.present_stamp() for file in self._files)

    def present_digest(self) -> str:
        """The digest of the open files as they are now; blocks while it reads them. `touched` is false afterwards."""
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
        """Closes the files. Idempotent."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenTasksets:
    """The tasksets of a process, each opened once."""

    def __init__(self) -> None:
        self._tasksets: list[Taskset] = []
        self._opening = asyncio.Lock()

    async def get(self, spec: TasksetSpec, digest: str) -> Taskset:
        """The taskset, as it is now. Raises DataError if it does not have this digest; an empty one fits any."""
        taskset = self._held(spec) or await self._opened(spec)
        found = await asyncio.to_thread(taskset.present_digest) if taskset.touched else taskset.digest
        if digest and found != digest:
            raise DataError(
                f"taskset {spec.name!r} has digest {found}, the experiment was accepted with {digest}",
                where=spec.path,
                fix="restore the file, or submit a new experiment",
            )
        return taskset

    async def _opened(self, spec: TasksetSpec) -> Taskset:
        async with self._opening:  # many leases come at once, and a large file is read for its digest once
            held = self._held(spec)
            if held is None:
                held = await asyncio.to_thread(Taskset.open, spec)
                self._tasksets.append(held)
            return held

    def _held(self, spec: TasksetSpec) -> Taskset | None:
        # By the whole of it: tasksets of two stages may have one name, or be one file that is read in two ways.
        return next((each for each in self._tasksets if each.spec == spec), None)


class _File:
    """An open file and the places of its rows: offset and size in bytes  # [rows, 2] i8"""

    def __init__(self, path: Path, digest: hashlib._Hash, limit_rows: int | None) -> None:
        self.path = path
        try:
            self._handle = path.open("rb", buffering=limits.MIB)
        except OSError as error:
            raise DataError(f"taskset file cannot be opened: {error.strerror}", where=str(path)) from error
        self.stamp = self.present_stamp()
        try:
            self.places = self._scan(digest, limit_rows)
        except BaseException:
            self._handle.close()
            raise

    def _scan(self, digest: hashlib._Hash, limit_rows: int | None) -> NDArray[np.int64]:
        # 16 bytes for a row: the rows themselves may be larger than memory.
        places = array("q")
        rows = 0
        offset = number = 0
        # One byte more than allowed: a line of just the limit is told apart from a longer one.
        while line := self._handle.readline(limits.TASKSET_ROW_SIZE_BYTES + 1):
            digest.update(line)
            number += 1
            if len(line) > limits.TASKSET_ROW_SIZE_BYTES:
                raise DataError(
                    f"line is longer than {limits.TASKSET_ROW_SIZE_BYTES} bytes",
                    where=f"{self.path}:{number}",
                    fix="shorten the row; large content belongs into files of its own",
                )
            # Every byte counts for the digest, also behind limit_rows: the file is what the experiment was accepted
            # with.
            if (limit_rows is None or rows < limit_rows) and line.strip():
                _decode(line, f"{self.path}:{number}")
                places.extend((offset, len(line)))
                rows += 1
            offset += len(line)
        return np.array(places, dtype=np.int64).reshape(rows, 2)

    def present_stamp(self) -> tuple[int, int]:
        status = os.fstat(self._handle.fileno())
        return status.st_size, status.st_mtime_ns

    def chunks(self) -> Iterator[bytes]:
        offset = 0
        while chunk := os.pread(self._handle.fileno(), limits.MIB, offset):
            yield chunk
            offset += len(chunk)

    def row(self, index: int) -> dict[str, Any]:
        offset, size = (int(value) for value in self.places[index])
        # pread moves no shared position, so threads may read at once.
        return _decode(os.pread(self._handle.fileno(), size, offset), f"{self.path} row {index} (byte {offset})")

    def line(self, index: int) -> str:
        """`file:line` of a row, from 1; reads the file up to there."""
        left = int(self.places[index][0])
        number = 1
        for chunk in self.chunks():
            number += chunk[:left].count(b"\n")
            left -= len(chunk)
            if left <= 0:
                break
        return f"{self.path}:{number}"

    def close(self) -> None:
        self._handle.close()


def _cause(line: bytes) -> tuple[str, str] | None:
    """The reason why a line of a file that other tools write is no JSON, and what to do; None for any other."""
    if line.startswith(codecs.BOM_UTF8):
        return "the file begins with a byte order mark", "save it as UTF-8 without one (utf-8, not utf-8-sig)"
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line[:8]:
        return "the file is UTF-16 or UTF-32, and JSON is UTF-8", "convert it: iconv -f UTF-16 -t UTF-8"
    try:
        row = json.loads(line)  # Python's own reader takes numbers that JSON has not
    except (ValueError, RecursionError):
        return None
    for key, value in row.items() if isinstance(row, dict) else ():
        if isinstance(value, float) and not math.isfinite(value):
            shown = "NaN" if math.isnan(value) else "a number without end"
            return f"it has {shown} under {key!r}", "write null, or leave the column out"
    return None


def _decode(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except UNREADABLE as error:
        cause, fix = _cause(line) or (str(error), "write one JSON object per line")
        raise DataError(f"line is not JSON: {cause}", where=where, fix=fix) from None
    if not isinstance(row, dict):
        raise DataError(
            f"line is a JSON {type(row).__name__}, not an object", where=where, fix="write one JSON object per line"
        )
    return row
