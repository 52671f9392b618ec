"""A disk below SQLite that loses power at the n-th write, or fails the n-th operation: a VFS of APSW.

It is SQLite's default VFS while it is in use, so the log opens its files through it without knowing. Nothing is synced
for real. What a file would hold after a power cut is what was synced, and any subset of the 512-byte pieces that were
written since; a piece that was under way may also hold rubbish.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import apsw

from rftd.streams.sqlite import heads_file

SECTOR_SIZE_BYTES = 512
_NAME = "shaky"


class _Image:
    """A file as the platter has it, and what was written since the last sync."""

    def __init__(self, path: Path) -> None:
        self.durable = bytearray(path.read_bytes() if path.exists() else b"")
        self.pending: list[tuple[int, bytes] | int] = []
        """(offset, bytes) of a write, or the size of a truncation."""

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def after_a_cut(self, chance: random.Random, keep_p: float, rubbish_p: float) -> bytes:
        content = bytearray(self.durable)
        for change in self.pending:
            if isinstance(change, int):
                if chance.random() < keep_p:
                    _apply(content, change)
                continue
            for offset, piece in _pieces(*change):
                if chance.random() < keep_p:
                    _apply(content, (offset, piece))
                elif chance.random() < rubbish_p:
                    _apply(content, (offset, chance.randbytes(len(piece))))
        return bytes(content)


class ShakyDisk(apsw.VFS):
    """Counts what SQLite asks of its files, and fails it or loses power when it is told to."""

    def __init__(self, *, cut_at: int = 0, fail_at: int = 0, fail_for: int = 1, error: type[apsw.Error] = apsw.IOError):
        """`cut_at` counts writes, syncs, truncations and deletions, `fail_at` every operation; from 1, 0 is never."""
        super().__init__(_NAME, "unix", makedefault=True)
        self.changes = 0
        self.operations = 0
        self.off = False
        """The power is gone: nothing works any more."""
        self.failed: str | None = None
        """The operation that was failed first."""
        self._cut_at, self._fail_at, self._fail_for, self._error = cut_at, fail_at, fail_for, error
        self._images: dict[Path, _Image] = {}
        self._lock = threading.RLock()

    @contextmanager
    def in_use(self) -> Iterator[Self]:
        """SQLite and the file of heads lie on this disk while the block runs."""
        heads_os = heads_file.os
        setattr(heads_file, "os", _HeadsOs(self))  # noqa: B010
        try:
            yield self
        finally:
            setattr(heads_file, "os", heads_os)  # noqa: B010
            self.unregister()

    def fail_now(self) -> None:
        """The next operation fails."""
        with self._lock:
            self._fail_at = self.operations + 1

    def after_a_cut(self, folder: Path, chance: random.Random) -> None:
        """Writes into `folder` what the disk holds when power comes back."""
        keep_p, rubbish_p = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0)), chance.choice((0.0, 0.0, 0.3))
        folder.mkdir()
        for path, image in self._images.items():
            content = image.after_a_cut(chance, keep_p, rubbish_p)
            if content or not path.name.endswith("-wal"):
                (folder / path.name).write_bytes(content)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """See SQLite."""
        self.passes("open")
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name))
        return _File(self, self.image(path), name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """See SQLite; a deletion is durable at once."""
        self.passes("delete")
        with self._lock:
            self.changed()
            super().xDelete(filename, syncdir)
            self._images.pop(Path(filename), None)

    def excepthook(self, *_: object) -> None:
        """See APSW; nothing is printed for an error that SQLite does not pass on."""

    def image(self, path: Path) -> _Image:
        """The platter's side of a file."""
        with self._lock:
            return self._images.setdefault(path, _Image(path))

    def passes(self, kind: str) -> None:
        """Counts an operation. Raises the error that is due."""
        with self._lock:
            self.operations += 1
            if self.off:
                raise apsw.IOError("the power is gone")
            if self._fail_at and self._fail_at <= self.operations < self._fail_at + self._fail_for:
                self.failed = self.failed or kind
                raise self._error(f"injected: {kind}")

    def changed(self) -> None:
        """Counts a change of a file; the power may go."""
        with self._lock:
            if self.off:
                raise apsw.IOError("the power is gone")
            self.changes += 1
            if self.changes == self._cut_at:
                self.off = True
                raise apsw.IOError("the power is gone")

    def write(self, image: _Image, change: tuple[int, bytes] | int) -> None:
        """Notes what a file is given."""
        with self._lock:
            if not self.off:
                image.pending.append(change)
            self.changed()

    def sync(self, image: _Image) -> None:
        """Moves what was written to the platter."""
        with self._lock:
            self.changed()
            image.sync()


class _File(apsw.VFSFile):
    def __init__(self, disk: ShakyDisk, image: _Image, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._image = image

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.passes("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.passes("write")
        self._disk.write(self._image, (offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.passes("truncate")
        self._disk.write(self._image, newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.passes("sync")
        self._disk.sync(self._image)

    def xFileSize(self) -> int:
        self._disk.passes("size")
        return super().xFileSize()

    def xLock(self, level: int) -> None:
        self._disk.passes("lock")
        super().xLock(level)

    def excepthook(self, *_: object) -> None:
        pass


class _HeadsOs:
    """`os` for the file of heads, which is written without a sync."""

    def __init__(self, disk: ShakyDisk) -> None:
        self._disk = disk
        self._images: dict[int, _Image] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int) -> int:
        file = os.open(path, flags, mode)
        self._images[file] = self._disk.image(path)
        return file

    def pwrite(self, file: int, data: bytes, offset: int) -> int:
        try:
            self._disk.write(self._images[file], (offset, data))
        except apsw.IOError as error:
            raise OSError(str(error)) from error
        return os.pwrite(file, data, offset)


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del content[change:]
        return
    offset, data = change
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _pieces(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """The parts of a write that reach the platter each as a whole or not at all."""
    start = 0
    while start < len(data):
        end = start + SECTOR_SIZE_BYTES - (offset + start) % SECTOR_SIZE_BYTES
        yield offset + start, data[start:end]
        start = end
