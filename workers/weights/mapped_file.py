"""A file of weights mapped by many processes: layout, and reuse as a buffer.

    "rftdmem1"           8 bytes
    length of the head   8 bytes, little-endian
    head                 the manifest as JSON, padded to whole pages
    tensors              each at its offset behind the head, a multiple of 64

A writer holds the file's exclusive lock while writing, a reader a shared lock while reading: a buffer is reused only
without readers. Locks end with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import psutil
import xxhash

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import DiskFullError, WorkError
from rftd.workers.weights.manifest import Manifest, manifest_id
from rftd.workers.weights.tensor_bytes import TensorBytes, size_bytes

MAGIC: Final = b"rftdmem1"
"""First bytes of a mapped file, with the version of its layout."""
ALIGNMENT_BYTES: Final = 64
"""A tensor's offset behind the head is a multiple of this."""
CHUNK_BYTES: Final = 1 << 20
"""Bytes copied and then summed at once, so that the sum reads from the processor's cache."""

_PAGE_BYTES: Final = 4096
"""Size of a memory page; the head is padded to a multiple."""
_PREFIX_BYTES: Final = len(MAGIC) + 8
"""Size of everything before the head: `MAGIC` and the head's length."""
_SHARED: Final = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
"""Flags of a writer's mapping: visible to other processes, and filled in advance where the system can."""
_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14: pages are mapped at once instead of one by one on first access."""


class Buffer:
    """A file allocated completely in advance, so that writing cannot run out of space; renamed when it has a version's
    weights.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Creates the file. Raises DiskFullError for lack of room, OSError if creation fails, WorkError on a system
        unable to allocate in advance.
        """
        self.path = path
        self.size = size
        if not hasattr(os, "posix_fallocate"):
            raise WorkError("this system cannot allocate a file ahead", where=str(path.parent), fix=_CHECKPOINT)
        # posix_fallocate on a memory file system would use up the machine's last memory before failing.
        _check_room(path.parent, size)
        # O_EXCL and O_NOFOLLOW: the folder may lie in /dev/shm, where other users can create links under rftd's names.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        try:
            # flock, not fcntl's record locks: those would end when any descriptor of the process on this file is
            # closed.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            # Without it a write into the mapping could hit a full file system, and so SIGBUS: the process would die.
            os.posix_fallocate(self._descriptor, 0, size)
            self._mapped = mmap.mmap(self._descriptor, size, flags=_SHARED)
        except OSError as error:
            os.close(self._descriptor)
            path.unlink(missing_ok=True)
            raise DiskFullError(
                f"no room for {size} bytes of weights: {error.strerror}", where=str(path.parent), fix=_ROOM
            ) from error
        self._bytes = np.frombuffer(self._mapped, dtype=np.uint8)

    def copy(self, data: memoryview, offset: int) -> str:
        """Writes the bytes at the offset; returns the xxh3-128 (hex) of the stored bytes."""
        digest = xxhash.xxh3_128()
        source = np.frombuffer(data, dtype=np.uint8)
        for begin in range(0, len(source), CHUNK_BYTES):
            chunk = source[begin : begin + CHUNK_BYTES]
            target = self._bytes[offset + begin : offset + begin + len(chunk)]
            np.copyto(target, chunk)
            # The sum of the stored bytes, not of the source: detects a fault of the memory as well.
            digest.update(target.data)
        return digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Writes the head of the file: magic number and manifest, which readers check first."""
        self._mapped[: len(data)] = data

    def publish_as(self, path: Path) -> None:
        """Publishes the complete file: makes it durable, gives it the name `path`, and unlocks it for readers."""
        # For folders on a disk; costs nothing on a memory file system.
        os.fsync(self._descriptor)
        os.rename(self.path, path)
        # Unlocked after the rename: under the new name the file is whole, and readers take shared locks from now on.
        self.path = path
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def reclaim(self, path: Path) -> bool:
        """Renames a published file to `path`, to be overwritten as a buffer; False if it is being read, or was
        removed.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self.path, path)
        except OSError:
            return False
        self.path = path
        return True

    def forget(self) -> None:
        """Closes the file without removing its name, which belongs to another file or to none."""
        os.close(self._descriptor)

    def close(self) -> None:
        """Removes the file and closes the descriptor; existing mappings keep the bytes."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


class Reader:
    """A process's private mapping of a file: writes do not affect other processes."""

    def __init__(self, descriptor: int) -> None:
        """Maps the complete file of the descriptor, which is closed by `close`. Raises OSError or ValueError."""
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        # Private and writable: torch requires writable memory, and writes stay in the process.
        mapped = mmap.mmap(descriptor, self.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with contextlib.suppress(OSError):
            mapped.madvise(_POPULATE_READ)
        self.data = memoryview(mapped)

    @property
    def removed(self) -> bool:
        """True once the file was removed from its folder."""
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self) -> None:
        """Closes the file; the mapping ends with the last user."""
        os.close(self._descriptor)


def head_of(manifest: Manifest) -> bytes:
    """Returns the head of a file with this manifest: all bytes before the tensors."""
    encoded = msgspec.json.encode(manifest)
    head = MAGIC + len(encoded).to_bytes(8, "little") + encoded
    return head + bytes(-len(head) % _PAGE_BYTES)


def id_of(head: bytes) -> str:
    """Returns the id of the manifest in the head of a file."""
    return manifest_id(_encoded(memoryview(head)))


def parse(data: memoryview, *, expect: str) -> tuple[Manifest, dict[str, TensorBytes]]:
    """Returns manifest and tensors of a file's bytes, tensors not yet verified. Raises ValueError unless the manifest
    has the id `expect`.
    """
    encoded = _encoded(data)
    if manifest_id(encoded) != expect:
        raise ValueError(f"manifest {manifest_id(encoded)} is not {expect}")
    manifest = json_decoder(Manifest).decode(encoded)
    if len(manifest.offsets) != len(manifest.tensors):
        raise ValueError("tensors without a place")
    begin = _PREFIX_BYTES + len(encoded)
    tensors = data[begin + -begin % _PAGE_BYTES :]
    parsed: dict[str, TensorBytes] = {}
    tied: dict[tuple[int, str, tuple[int, ...]], TensorBytes] = {}
    for line, offset in zip(manifest.tensors, manifest.offsets, strict=True):
        size = size_bytes(line.dtype, line.shape)
        # Checked here, not by slicing: a memoryview silently truncates a slice at the end.
        if not 0 <= offset <= offset + size <= len(tensors):
            raise ValueError(f"tensor {line.name!r} lies beyond the end of the file")
        tensor = TensorBytes(line.dtype, line.shape, tensors[offset : offset + size])
        parsed[line.name] = tied.setdefault((offset, line.dtype, line.shape), tensor) if size else tensor
    return manifest, parsed


def aligned(offset: int) -> int:
    """Returns the smallest multiple of 64 at or above `offset`: the next possible beginning of a tensor."""
    return offset + -offset % ALIGNMENT_BYTES


def open_to_read(path: Path) -> int:
    """Opens a file with a shared lock, and returns its descriptor. Raises OSError; WorkError if the file is being
    overwritten.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # Without waiting: a writer holds the lock while overwriting the weights.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise WorkError("the weights were retired, others take their place", where=str(path)) from None
    return descriptor


def let_go(descriptor: int) -> None:
    """Unlocks and closes a descriptor of `open_to_read`; an existing mapping stays valid."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _encoded(data: memoryview) -> bytes:
    """Returns the encoded manifest at the beginning of a file. Raises ValueError."""
    size = int.from_bytes(data[len(MAGIC) : _PREFIX_BYTES], "little")
    # The length is checked before use: the file may be anything, or truncated.
    if bytes(data[: len(MAGIC)]) != MAGIC or not 0 < size <= len(data) - _PREFIX_BYTES:
        raise ValueError("no mapped weights")
    return bytes(data[_PREFIX_BYTES : _PREFIX_BYTES + size])


def _check_room(folder: Path, size: int) -> None:
    """Raises DiskFullError unless disk and memory have room."""
    status = os.statvfs(folder)
    free = min(status.f_bavail * status.f_frsize, psutil.virtual_memory().available)
    if free < size:
        raise DiskFullError(f"{size} bytes of weights need room, {free} are free", where=str(folder), fix=_ROOM)


_CHECKPOINT: Final = "write synchronizer.sync_method: checkpoint"
"""Fix for errors: use of the channel `checkpoint` instead."""
_ROOM: Final = f"make room there, name another folder in synchronizer.memory_dir, or {_CHECKPOINT}"
"""Fix for errors: too little space in the folder of mapped files."""
