"""Rows of text files: JSON Lines, JSON and CSV. Only the positions of the rows are in memory."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import math
import os
import sys
from abc import abstractmethod
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError
from rftd.workers.datasets.row_file import RowFile

if TYPE_CHECKING:
    import _csv

_FLAGS: Final = {"true": True, "false": False, "1": True, "0": False}
"""Booleans as written in CSV."""


class TextRows(RowFile):
    """A text file of rows, indexed by byte offset and size; the rows themselves stay on disk."""

    def __init__(self, path: Path, digest: hashlib._Hash, limit_rows: int | None) -> None:
        """Opens and scans the file; `digest` gets every byte. Raises DataError."""
        super().__init__(path)
        try:
            # 16 bytes for a row: the rows themselves may be larger than memory.
            self._spans = self._scan(digest, limit_rows)  # [rows, 2] i8
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _scan(self, digest: hashlib._Hash, limit_rows: int | None) -> NDArray[np.int64]: ...

    @abstractmethod
    def _decode(self, text: bytes, where: str) -> dict[str, Any]: ...

    def __len__(self) -> int:
        return len(self._spans)

    def row(self, index: int) -> dict[str, Any]:
        """Returns the row as an object; see `RowFile.row`."""
        offset, size = (int(number) for number in self._spans[index])
        # pread moves no shared position, so threads may read at once.
        text = os.pread(self._handle.fileno(), size, offset)
        return self._decode(text, f"{self.path} row {index} (byte {offset})")

    def place(self, index: int) -> str:
        """Returns `file:line` of a row, with lines from 1; reads the file up to the row."""
        return f"{self.path}:{self._line_at(int(self._spans[index][0]))}"

    def _line_at(self, offset: int) -> int:
        """Returns the line number of an offset, from 1."""
        number = 1
        for chunk in self.chunks():
            number += chunk[:offset].count(b"\n")
            offset -= len(chunk)
            if offset <= 0:
                break
        return number

    def _check_size(self, size_bytes: int, line: int) -> None:
        """Raises DataError for a row over the limit."""
        if size_bytes > limits.TASKSET_ROW_SIZE_BYTES:
            raise DataError(
                f"line is longer than {limits.TASKSET_ROW_SIZE_BYTES} bytes",
                where=f"{self.path}:{line}",
                fix="shorten the row; store large content in separate files",
            )


class LineRows(TextRows):
    """JSON Lines: one object per line; blank lines do not count."""

    def _scan(self, digest: hashlib._Hash, limit_rows: int | None) -> NDArray[np.int64]:
        """Returns offset and size of each line with an object  # [rows, 2]"""
        spans = array("q")
        rows = 0
        offset = number = 0
        max_rows = sys.maxsize if limit_rows is None else limit_rows
        # One byte more than allowed, to distinguish a line of just the limit from a longer one.
        while line := self._handle.readline(limits.TASKSET_ROW_SIZE_BYTES + 1):
            digest.update(line)
            number += 1
            size_bytes = len(line)
            if size_bytes > limits.TASKSET_ROW_SIZE_BYTES:
                self._check_size(size_bytes, number)
            # Every byte counts for the digest, also behind limit_rows: the digest is of the accepted file.
            if rows < max_rows and not line.isspace():
                if not _is_object(line):  # the location is formatted for a wrong line only: there may be millions
                    self._decode(line, f"{self.path}:{number}")
                spans.append(offset)
                spans.append(size_bytes)
                rows += 1
            offset += size_bytes
        return np.frombuffer(spans, dtype=np.int64).reshape(rows, 2)

    def _decode(self, text: bytes, where: str) -> dict[str, Any]:
        """Decodes a line. Raises DataError."""
        return _decode_object(text, where)


class ListRows(TextRows):
    """JSON that is one list of objects."""

    def _scan(self, digest: hashlib._Hash, limit_rows: int | None) -> NDArray[np.int64]:
        # The whole text at once, undecoded: each row is decoded at its use.
        """Returns offset and size of each object in the list  # [rows, 2]"""
        text = b"".join(self.chunks())
        digest.update(text)
        try:
            listed = json_decoder(list[msgspec.Raw]).decode(text)
        except UNREADABLE as error:
            cause, fix = _cause_of(text) or (
                str(error),
                "write a list of objects, or one object per line in a .jsonl file",
            )
            raise DataError(f"file is not a JSON list: {cause}", where=str(self.path), fix=fix) from None
        spans = array("q")
        offset = 0
        rows = len(listed) if limit_rows is None else min(limit_rows, len(listed))
        for raw in listed[:rows]:
            row = bytes(raw)
            # Between two rows there are only blanks and a comma, and no row begins with one.
            offset = text.index(row, offset)
            if len(row) > limits.TASKSET_ROW_SIZE_BYTES:
                self._check_size(len(row), text.count(b"\n", 0, offset) + 1)
            self._decode(row, f"{self.path} row {len(spans) // 2} (byte {offset})")
            spans.extend((offset, len(row)))
            offset += len(row)
        return np.frombuffer(spans, dtype=np.int64).reshape(rows, 2)

    def _decode(self, text: bytes, where: str) -> dict[str, Any]:
        """Decodes an object of the list. Raises DataError."""
        return _decode_object(text, where)


class CommaRows(TextRows):
    """CSV with a line of column names. Every cell is text, unchanged; an empty one is null."""

    def __init__(self, path: Path, digest: hashlib._Hash, limit_rows: int | None, label_key: str) -> None:
        """`label_key` is the column read as a boolean."""
        self._columns: list[str] = []
        """Names of the columns, in order."""
        self._label_key = label_key
        super().__init__(path, digest, limit_rows)

    def _scan(self, digest: hashlib._Hash, limit_rows: int | None) -> NDArray[np.int64]:
        """Returns offset and size of each row, after the header  # [rows, 2]"""
        spans = array("q")
        rows = 0
        lines = _CountedLines(self, digest)
        reader = _csv_reader(lines)
        try:
            self._columns = self._header(next(reader, None))
            start = lines.offset
            line = reader.line_num + 1
            for cells in reader:
                self._check_size(lines.offset - start, line)
                if cells and (limit_rows is None or rows < limit_rows):
                    self._by_column(cells, f"{self.path}:{line}")
                    spans.extend((start, lines.offset - start))
                    rows += 1
                start = lines.offset
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"line is not CSV: {error}",
                where=f"{self.path}:{reader.line_num}",
                fix="quote texts as in RFC 4180",
            ) from None
        except UnicodeDecodeError as error:
            raise DataError(
                f"line is not UTF-8: {error.reason}", where=f"{self.path}:{reader.line_num + 1}", fix="save it as UTF-8"
            ) from None
        return np.frombuffer(spans, dtype=np.int64).reshape(rows, 2)

    def _header(self, names: list[str] | None) -> list[str]:
        """Returns the column names of the first line. Raises DataError for a repeated or empty one."""
        columns = names or []
        if columns:
            columns[0] = columns[0].removeprefix("\ufeff")  # spreadsheets write a byte order mark
        repeated = {name for name in columns if columns.count(name) > 1}
        if repeated or "" in columns:
            problem = f"two columns are named {min(repeated)!r}" if repeated - {""} else "a column has no name"
            raise DataError(problem, where=f"{self.path}:1", fix="give each column a unique name in the first line")
        return columns

    def _decode(self, text: bytes, where: str) -> dict[str, Any]:
        """Decodes a row by the header's names. Raises DataError."""
        try:
            cells = next(_csv_reader(io.StringIO(text.decode(), newline="\n")))
        except (csv.Error, StopIteration, UnicodeDecodeError) as error:
            raise DataError(f"row is not CSV: {error}", where=where, fix="restore the file") from None
        return self._by_column(cells, where)

    def _by_column(self, cells: list[str], where: str) -> dict[str, Any]:
        """Returns the cells of a line by column name. Raises DataError for a wrong number of cells."""
        if len(cells) != len(self._columns):
            raise DataError(
                f"line has {len(cells)} values, and the first line names {len(self._columns)} columns",
                where=where,
                fix="quote values that hold commas or line breaks",
            )
        row: dict[str, Any] = {name: cell or None for name, cell in zip(self._columns, cells, strict=True)}
        # A label is true or false; everything else stays text, because 007 is not 7 and a truth may be the word true.
        label = row.get(self._label_key)
        if isinstance(label, str) and label.lower() in _FLAGS:
            row[self._label_key] = _FLAGS[label.lower()]
        return row


class _CountedLines:
    """The lines of a file as text, with the offset behind the last one."""

    def __init__(self, file: TextRows, digest: hashlib._Hash) -> None:
        """Reads the lines of `file`; `digest` gets every byte."""
        self._handle = file._handle
        """The open file."""
        self._digest = digest
        self._file = file
        self._number = 0
        """Number of the last line."""
        self.offset = 0
        """Offset behind the last line."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._handle.readline(limits.TASKSET_ROW_SIZE_BYTES + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self._file._check_size(len(line), self._number)
        self._digest.update(line)
        self.offset += len(line)
        return line.decode()


def _csv_reader(lines: Iterator[str]) -> _csv.Reader:
    # The library's own limit is for the whole process, and lower than a row's.
    """Returns a strict CSV reader accepting cells up to a row's limit."""
    csv.field_size_limit(limits.TASKSET_ROW_SIZE_BYTES)
    return csv.reader(lines, strict=True)


def _cause_of(line: bytes) -> tuple[str, str] | None:
    """Returns why a line written by another tool is no JSON (such as NaN), with a fix; None for an unknown reason."""
    if line.startswith(codecs.BOM_UTF8):
        return "the file begins with a byte order mark", "save it as UTF-8 without one (utf-8, not utf-8-sig)"
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line[:8]:
        return "the file is UTF-16 or UTF-32, and JSON is UTF-8", "convert it: iconv -f UTF-16 -t UTF-8"
    try:
        row = json.loads(line)  # Python's own reader accepts numbers outside JSON
    except (ValueError, RecursionError):
        return None
    for key, cell in row.items() if isinstance(row, dict) else ():
        if isinstance(cell, float) and not math.isfinite(cell):
            shown = "NaN" if math.isnan(cell) else "an infinite number"
            return f"it has {shown} under {key!r}", "write null, or leave the column out"
    return None


def _is_object(line: bytes) -> bool:
    """True for the JSON text of an object."""
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except UNREADABLE:
        return False


def _decode_object(line: bytes, where: str) -> dict[str, Any]:
    """Returns the JSON object on a line. Raises DataError for any other text."""
    try:
        row = msgspec.json.decode(line)
    except UNREADABLE as error:
        cause, fix = _cause_of(line) or (str(error), "write one JSON object per line")
        raise DataError(f"line is not JSON: {cause}", where=where, fix=fix) from None
    if not isinstance(row, dict):
        raise DataError(
            f"line is a JSON {type(row).__name__}, not an object", where=where, fix="write one JSON object per line"
        )
    return row
