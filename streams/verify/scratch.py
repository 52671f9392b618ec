"""Storage of a check, on disk where it grows with the log: tables and lists of fixed-size rows, and bit maps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from rftd.ops.limits import MIB

_BLOCK_SIZE_BYTES: Final = MIB
"""Size of the blocks written to the file."""


class Scratch:
    """One temporary file, created at the first write, for data that no longer fits in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        """Prepares a file in `folder`, by default in the system's folder for temporary files."""
        self._folder = folder
        self._file: IO[bytes] | None = None
        self.size_bytes = 0

    def add(self, content: bytes | bytearray) -> int:
        """Appends the bytes. Returns their first offset."""
        start = self.size_bytes
        self.size_bytes += len(content)
        self.write(start, content)
        return start

    def write(self, start: int, content: bytes | bytearray) -> None:
        """Writes the bytes at an offset within the bytes added so far."""
        if self._file is None:
            # Without a name: a killed check leaves nothing behind. Never synced, for it is worth nothing then.
            self._file = TemporaryFile(dir=self._folder, prefix="rftd-verify-")  # noqa: SIM115 (closed by `close`)
        done = 0
        while done < len(content):  # one call writes 2 GiB at most, and less when a signal comes
            done += os.pwrite(self._file.fileno(), memoryview(content)[done:], start + done)

    def read(self, start: int, size_bytes: int) -> bytearray:
        """Returns `size_bytes` bytes from this offset, added before."""
        assert self._file is not None
        content = bytearray(size_bytes)
        done = 0
        while done < size_bytes:
            done += os.preadv(self._file.fileno(), [memoryview(content)[done:]], start + done)
        return content

    def close(self) -> None:
        """Closes the file, and thereby frees its disk space."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Table:
    """Rows of one size, by (space, index), initially zero; the pages used last are in memory, the others on disk."""

    def __init__(self, scratch: Scratch, row_size_bytes: int, *, page_rows: int, memory_size_bytes: int) -> None:
        """Creates an empty table; `page_rows` must be a power of two: a row's page is found by shifting its index."""
        self.row_size_bytes = row_size_bytes
        self._scratch = scratch
        self._bits = page_rows.bit_length() - 1
        self._mask = page_rows - 1
        self._page_size_bytes = page_rows * row_size_bytes
        self._limit = max(2, memory_size_bytes // self._page_size_bytes)
        self._hot: dict[tuple[int, int], bytearray] = {}
        """The pages in memory, the last used one at the end."""
        self._cold: dict[tuple[int, int], int] = {}
        """The offsets in the scratch file of pages evicted at least once."""
        self._numbers: dict[int, list[int]] = {}
        """Page numbers of each space."""
        self._last: tuple[int, int] = (-1, -1)
        self._page = bytearray()

    def row(self, space: int, index: int) -> tuple[bytearray, int]:
        """Returns the page with a row, and the offset of the row in it.

        The page may be written to until the next call: the next call may evict it, and later writes are lost.
        """
        key = (space, index >> self._bits)
        if key != self._last:  # records come in order: nearly every call is for the page of the previous one
            page = self._hot.pop(key, None)
            if page is None:
                page = self._fetch(key)
            self._hot[key] = page
            self._last = key
            self._page = page
        return self._page, (index & self._mask) * self.row_size_bytes

    def pages(self) -> Iterator[tuple[int, int, bytearray]]:
        """Yields (space, index of the first row, rows) of every page; the rows may be written to."""
        for space in list(self._numbers):
            for first, page in self.pages_of(space):
                yield space, first, page

    def pages_of(self, space: int) -> Iterator[tuple[int, bytearray]]:
        """Yields (index of the first row, rows) of every page of one space, in order."""
        for number in sorted(self._numbers.get(space, ())):
            first = number << self._bits
            page, _ = self.row(space, first)
            yield first, page

    def _fetch(self, key: tuple[int, int]) -> bytearray:
        # The page goes to disk even if unchanged: callers write into it without informing the table.
        """Returns a page missing in memory, from disk or new, for reading and writing; with too many pages in memory,
        the one unused for longest goes to disk.
        """
        if len(self._hot) >= self._limit:
            oldest = next(iter(self._hot))
            page = self._hot.pop(oldest)
            start = self._cold.get(oldest)
            if start is None:
                self._cold[oldest] = self._scratch.add(page)
            else:
                self._scratch.write(start, page)
        start = self._cold.get(key)
        if start is not None:
            return self._scratch.read(start, self._page_size_bytes)
        self._numbers.setdefault(key[0], []).append(key[1])
        return bytearray(self._page_size_bytes)


class Spool:
    """A list of rows of one size, on disk except for the last block."""

    def __init__(self, scratch: Scratch, row_size_bytes: int) -> None:
        """Begins empty, with rows of this size."""
        self.row_size_bytes = row_size_bytes
        self._scratch = scratch
        self._block_size_bytes = _BLOCK_SIZE_BYTES // row_size_bytes * row_size_bytes
        self._blocks: list[int] = []
        self._tail = bytearray()

    def __len__(self) -> int:
        """Number of rows."""
        return (len(self._blocks) * self._block_size_bytes + len(self._tail)) // self.row_size_bytes

    def add(self, rows: bytes) -> None:
        """Appends one row, or several."""
        tail = self._tail
        tail += rows
        size = self._block_size_bytes
        while len(tail) >= size:
            self._blocks.append(self._scratch.add(tail[:size]))
            del tail[:size]

    def blocks(self) -> Iterator[bytes | bytearray]:
        """Yields all rows in the order of their addition, up to a MiB at a time."""
        for start in self._blocks:
            yield self._scratch.read(start, self._block_size_bytes)
        if self._tail:
            yield bytes(self._tail)

    def row(self, index: int) -> bytes:
        """Returns the row at an index below the length."""
        block, start = divmod(index * self.row_size_bytes, self._block_size_bytes)
        if block < len(self._blocks):
            return bytes(self._scratch.read(self._blocks[block] + start, self.row_size_bytes))
        return bytes(self._tail[start : start + self.row_size_bytes])


class Bits:
    """Sets of small numbers, each under a key, as bit maps with pages created on demand."""

    _PAGE_BITS: Final = 4096
    """Number of bits of a page."""

    def __init__(self) -> None:
        """Begins with empty sets."""
        self._pages: dict[tuple[object, int], bytearray] = {}

    def add(self, key: object, number: int) -> bool:
        """Adds a number. Returns False if already present."""
        page_number, bit = divmod(number, self._PAGE_BITS)
        page = self._pages.get((key, page_number))
        if page is None:
            page = self._pages[key, page_number] = bytearray(self._PAGE_BITS // 8)
        mask = 1 << (bit & 7)
        if page[bit >> 3] & mask:
            return False
        page[bit >> 3] |= mask
        return True

    def remove(self, key: object, number: int) -> None:
        """Removes a number, if present."""
        page_number, bit = divmod(number, self._PAGE_BITS)
        page = self._pages.get((key, page_number))
        if page is not None:
            page[bit >> 3] &= ~(1 << (bit & 7))

    def has(self, key: object, number: int) -> bool:
        """True if the number is in the set of the key."""
        page_number, bit = divmod(number, self._PAGE_BITS)
        page = self._pages.get((key, page_number))
        return page is not None and bool(page[bit >> 3] & 1 << (bit & 7))

    def numbers(self) -> Iterator[tuple[object, int]]:
        """Yields (key, number) of all sets."""
        for (key, page_number), page in self._pages.items():
            for byte, bits in enumerate(page):
                for bit in range(8) if bits else ():
                    if bits & 1 << bit:
                        yield key, page_number * self._PAGE_BITS + byte * 8 + bit
