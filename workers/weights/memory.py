"""The `memory` channel: a weight version is a file mapped by all workers of a machine."""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.errors import ConflictError, DiskFullError, WeightsElsewhereError, WorkError
from rftd.ops.own_folder import tighten
from rftd.storage.files.shared_memory import shared_folder
from rftd.workers.weights import mapped_file
from rftd.workers.weights.channel import ChannelPlace, Exported, WeightsRef, check_announced, name_of
from rftd.workers.weights.checksum import checksum_of, tensor_sums
from rftd.workers.weights.manifest import Manifest, TensorSum
from rftd.workers.weights.mapped_file import Buffer, Reader
from rftd.workers.weights.tensor_bytes import TensorBytes, Weights

COPY_THREADS: Final = 2
"""Threads that copy: summing occupies a processor longer than the memory, and a second thread copies meanwhile."""

SUFFIX: Final = ".mapped"
"""End of the name of a mapped file."""
_MAPPINGS: Final = 8
"""Maximum files kept mapped by a reader: as buffers are reused, its next load finds one of them."""


class MemoryChannel:
    """Implements `WeightChannel`. A reboot loses all versions; the trainer can publish again.

    The sums of a manifest are computed while the bytes are copied. The file of a retired version becomes the next
    buffer if unread, because a new file's first pages cost more than copying.
    """

    def __init__(self, folder: Path, epoch: int = 0) -> None:
        """`folder` belongs to an experiment and a user, and is created when needed. `epoch` is the publisher's."""
        self._folder = folder
        self._epoch = epoch
        self._blank = folder / f".spare-{f'e{epoch}-' if epoch else ''}{os.getpid()}{SUFFIX}.partial"
        self._shown: dict[str, Buffer] = {}
        self._spare: Buffer | None = None
        self._size = 0
        self._mapped: dict[tuple[int, int], Reader] = {}

    def publish(self, weights: Weights, *, version: int, generation: int) -> Exported:
        """Copies the weights once, and shows the file when the head is written. Raises DiskFullError, ConflictError."""
        path = self._path(version, generation)
        offsets, end = _layout(weights)
        # Checksums have a fixed length, so the head with zeros is as long as the final head: tensors are copied first,
        # behind the head.
        blank = tuple(TensorSum(name, weights[name].dtype, weights[name].shape, "0" * 32) for name in sorted(weights))
        manifest = Manifest(
            version=version, generation=generation, checksum="0" * 32, tensors=blank, offsets=tuple(offsets.values())
        )
        if path.exists():
            return self._repeated(weights, manifest, path)
        begin = len(mapped_file.head_of(manifest))
        buffer = self._buffer(begin + end)
        try:
            once = {id(tensor): (tensor.data, begin + offsets[name]) for name, tensor in weights.items()}
            # Starting threads takes longer than copying a small model.
            if end <= mapped_file.CHUNK_BYTES:
                sums = {key: buffer.copy(*copy_arguments) for key, copy_arguments in once.items()}
            else:
                with ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="copy") as threads:
                    sums = dict(zip(once, threads.map(lambda part: buffer.copy(*part), once.values()), strict=True))
            tensors = tuple(msgspec.structs.replace(line, xxh3=sums[id(weights[line.name])]) for line in blank)
            head = _summed(manifest, tensors)
            # Last of all bytes: until then the file has no valid head.
            buffer.write(head)
            # If the file was removed, the buffer is no longer a reusable file.
            if (former_buffer := self._shown.pop(str(path), None)) is not None:
                former_buffer.forget()
            buffer.publish_as(path)
        except BaseException:
            buffer.close()
            raise
        self._shown[str(path)] = buffer
        return _exported(path, head, checksum_of(tensors), buffer.size)

    def prepare(self) -> None:
        """Allocates the next buffer, unless a retired buffer is available."""
        if self._spare is None and self._size:
            try:
                self._spare = self._allocated(self._size)
            except (OSError, WorkError):
                return  # the publication that needs it will report the error

    def holds(self, weights: WeightsRef) -> bool:
        """True if the file lies in this experiment's folder, with the announced manifest."""
        path = Path(weights.path)
        # The memory of another machine, or of another user's folder, says nothing about the local memory.
        if path.parent != self._folder:
            return False
        try:
            return mapped_file.id_of(_read_head(path)) == weights.manifest
        except (OSError, ValueError, MemoryError):
            return False

    @contextmanager
    def open(self, weights: WeightsRef) -> Iterator[Weights]:
        """Maps the file, without a copy, and verifies every tensor. The bytes do not change while the context lasts.
        Raises WorkError.
        """
        path = Path(weights.path)
        try:
            descriptor = mapped_file.open_to_read(path)
        except FileNotFoundError as error:
            raise _gone(weights) from error
        except OSError as error:
            raise WorkError(f"weights cannot be opened: {error.strerror}", where=weights.path) from error
        try:
            yield self._verified(descriptor, weights)
        finally:
            mapped_file.let_go(descriptor)

    def retire(self, weights: WeightsRef) -> None:
        """Removes the file, or keeps it as the next buffer if unread and of equal size."""
        # Only a publisher has buffers; a successor, or an explorer, merely removes the name.
        buffer = self._shown.pop(weights.path, None)
        if buffer is None:
            if Path(weights.path).parent == self._folder:
                Path(weights.path).unlink(missing_ok=True)
        # Only with an equal size: weights of another size (another stage) need another file.
        elif self._spare is None and buffer.size == self._size and buffer.reclaim(self._blank):
            self._spare = buffer
        else:
            buffer.close()

    def _path(self, version: int, generation: int) -> Path:
        """Returns the path for a version; an unreadable file under the name is left alone, and another name is used."""
        for attempt in count():
            path = self._folder / f"{name_of(version, generation, self._epoch, attempt)}{SUFFIX}"
            try:
                _read_head(path)
            except (ValueError, MemoryError):
                continue
            except OSError:
                return path  # no file yet; or the writer will report the error
            return path
        raise AssertionError

    def _verified(self, descriptor: int, weights: WeightsRef) -> Weights:
        """Returns the tensors of an open file, each verified. Raises WorkError."""
        try:
            manifest, tensors = mapped_file.parse(self._reader(descriptor).data, expect=weights.manifest)
        except (OSError, ValueError, KeyError, msgspec.DecodeError) as error:
            raise WorkError(f"mapped weights cannot be read: {error}", where=weights.path) from error
        check_announced(manifest, weights)
        # Every byte is summed at each load: memory may have been overwritten by a publisher reusing the buffer.
        sums = {line.name: line for line in tensor_sums(tensors)}
        for line in manifest.tensors:
            if line != sums[line.name]:
                raise WorkError(f"tensor {line.name!r} is damaged: expected xxh3 {line.xxh3}", where=weights.path)
        return tensors

    def _reader(self, descriptor: int) -> Reader:
        """Returns the mapping of the open file, reused from an earlier load of the file."""
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        for old, reader in list(self._mapped.items()):
            # A mapping keeps the memory of a removed file alive; so the mapping is dropped at the next load.
            if reader.removed or len(self._mapped) >= _MAPPINGS or (old == key and reader.size != status.st_size):
                self._mapped.pop(old).close()
        if key not in self._mapped:
            # A separate descriptor: the lock ends with the other descriptor, the mapping stays for the next version in
            # the file.
            self._mapped[key] = Reader(os.dup(descriptor))
        return self._mapped[key]

    def _buffer(self, size: int) -> Buffer:
        """Returns a buffer of this size: the spare one, or a new one."""
        spare = self._spare
        self._spare = None
        self._size = size
        # The name may be gone: a clean-up of the folder knows no spare buffers.
        if spare is not None and spare.size == size and spare.path.exists():
            return spare
        if spare is not None:
            spare.close()
        return self._allocated(size)

    def _allocated(self, size: int) -> Buffer:
        """Returns a new buffer in the channel's folder."""
        _make_own_folder(self._folder)
        self._blank.unlink(missing_ok=True)
        return Buffer(self._blank, size)

    def _repeated(self, weights: Weights, manifest: Manifest, path: Path) -> Exported:
        """Returns the answer for an existing file, because a writer may have died before the announcement. Raises
        ConflictError for other weights.
        """
        tensors = tensor_sums(weights)
        head = _summed(manifest, tensors)
        with path.open("rb") as file:
            if file.read(len(head)) != head:
                raise ConflictError(
                    "the file already holds other weights", where=str(path), fix="publish into a separate folder"
                )
        return _exported(path, head, checksum_of(tensors), path.stat().st_size)


def memory_channel(place: ChannelPlace) -> MemoryChannel:
    """Returns an experiment's channel, with versions in a folder below `memory_dir` or in the machine's memory, else in
    the job's folder.
    """
    return MemoryChannel(shared_folder(place.job_dir, place.memory_dir), place.epoch)


def _read_head(path: Path) -> bytes:
    """Returns the manifest's part of a file. Raises OSError, or ValueError or MemoryError without a valid manifest."""
    with path.open("rb") as file:
        head = file.read(len(mapped_file.MAGIC) + 8)
        head += file.read(int.from_bytes(head[len(mapped_file.MAGIC) :], "little"))
    mapped_file.id_of(head)
    return head


def _layout(weights: Weights) -> tuple[dict[str, int], int]:
    """Returns the offset of each tensor, in name order, and the end of the last; tied tensors share an offset."""
    offsets: dict[str, int] = {}
    offset_of: dict[int, int] = {}
    end = 0
    for name in sorted(weights):
        tensor: TensorBytes = weights[name]
        if id(tensor) not in offset_of:
            offset_of[id(tensor)] = mapped_file.aligned(end)
            end = offset_of[id(tensor)] + tensor.data.nbytes
        offsets[name] = offset_of[id(tensor)]
    return offsets, end


def _summed(manifest: Manifest, tensors: tuple[TensorSum, ...]) -> bytes:
    """Returns the file's head with the tensors' checksums, and the checksum over all of them, added to the manifest."""
    return mapped_file.head_of(msgspec.structs.replace(manifest, checksum=checksum_of(tensors), tensors=tensors))


def _exported(path: Path, head: bytes, checksum: str, size: int) -> Exported:
    """Returns the location and checksums of a finished file, for its announcement."""
    return Exported(
        path=str(path),
        manifest=mapped_file.id_of(head),
        checksum=checksum,
        size_bytes=size,
        host=platform.node(),
    )


def _make_own_folder(folder: Path) -> None:
    """Creates the folder for the current user only; raises DiskFullError for a folder of another user: others may write
    beside it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    tighten(folder)
    # lstat: a link created by another user must not be followed.
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise DiskFullError(
            "the folder for weights in memory belongs to somebody else",
            where=str(folder),
            fix="name another folder in synchronizer.memory_dir",
        )


def _gone(weights: WeightsRef) -> WorkError:
    """Returns the error for missing weights: retired, or in another machine's memory."""
    this_host = platform.node()
    if weights.host in ("", this_host):
        return WorkError("the weights are gone; the trainer publishes them again", where=weights.path)
    return WeightsElsewhereError(
        f"weights {weights.version} lie in the memory of {weights.host}, this worker runs on {this_host}",
        where=weights.path,
        fix="write synchronizer.sync_method: checkpoint, with a job folder that both machines see",
    )
