"""Tensors of a checkpoint in parts: each rank's in a separate safetensors file, and a manifest over all files.

    actor/optimizer.rank_0_of_2.safetensors   the parts of rank 0
    actor/optimizer.rank_1_of_2.safetensors
    actor/optimizer.shards.json               the location of every part; written last

A part is a box of a tensor. Each number lies in exactly one part, and may be read by any number of ranks, in boxes
possibly different from the written ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError, WorkError
from rftd.workers.weights import safetensors
from rftd.workers.weights.tensor_bytes import ITEM_BYTES, TensorBytes, TensorLayout, size_bytes

FORMAT: Final = 1
"""Version of the manifest's layout."""
_FIX: Final = "resume from an earlier checkpoint"
"""Fix for unreadable checkpoints."""
_READ_BYTES: Final = 1 << 22
"""Size of the blocks read for a file's checksum."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a tensor: a box, with its offset and size along each dimension."""

    name: str
    """Name of the tensor."""
    whole: TensorLayout
    """Dtype and shape of the complete tensor."""
    offset: tuple[int, ...]
    """First index along each dimension."""
    size: tuple[int, ...]
    """Size along each dimension."""
    data: Callable[[], memoryview]
    """Returns the part's bytes in C order, flat; called once, so that only one part at a time is on the host."""


class PartPlace(msgspec.Struct, frozen=True, array_like=True):
    """The part of a tensor stored in a rank's file: offset and size along each dimension."""

    rank: int
    """The rank with the part in its file."""
    offset: tuple[int, ...]
    """First index along each dimension."""
    size: tuple[int, ...]
    """Size along each dimension."""


class ShardedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor, and the location of the parts in the ranks' files."""

    name: str
    """Name of the tensor."""
    dtype: str
    """torch's name of the type of its numbers."""
    shape: tuple[int, ...]
    """Sizes along the dimensions of the whole tensor."""
    parts: tuple[PartPlace, ...]
    """The parts, each number of the tensor in exactly one."""


class ShardFile(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's file, with size in bytes and xxh3-128 (hex)."""

    rank: int
    """The rank that wrote the file."""
    name: str
    """Name of the file within the checkpoint's folder."""
    size_bytes: int
    """Size of the file."""
    xxh3: str
    """xxh3-128 over the file's bytes, in hex."""


class ShardManifest(msgspec.Struct, frozen=True, kw_only=True):
    """All files and tensors of a checkpoint in parts; before `write_manifest`, those of a single rank."""

    format: int = FORMAT
    """Version of the manifest's layout."""
    ranks: int
    """Number of ranks that wrote the checkpoint."""
    files: tuple[ShardFile, ...]
    """The files of the ranks."""
    tensors: tuple[ShardedTensor, ...]
    """The tensors, with the locations of their parts."""


def write_part(folder: Path, kind: str, shards: Sequence[Shard], *, rank: int, ranks: int) -> ShardManifest:
    """Writes a rank's parts into its file, without syncing; returns the manifest of this file alone. Raises OSError."""
    name = f"{kind}.rank_{rank}_of_{ranks}.safetensors"
    digest = xxhash.xxh3_128()
    written_bytes = 0
    with (folder / name).open("wb") as file:
        for content in _file_bytes(shards):
            file.write(content)
            digest.update(content)
            written_bytes += len(content)
    tensors = (
        ShardedTensor(
            name=shard.name,
            dtype=shard.whole.dtype,
            shape=shard.whole.shape,
            parts=(PartPlace(rank, shard.offset, shard.size),),
        )
        for shard in shards
    )
    shard_file = ShardFile(rank=rank, name=name, size_bytes=written_bytes, xxh3=digest.hexdigest())
    return ShardManifest(ranks=ranks, files=(shard_file,), tensors=tuple(tensors))


def _file_bytes(shards: Sequence[Shard]) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a rank's file: the header, then each part."""
    yield safetensors.header_of({shard.name: TensorLayout(shard.whole.dtype, shard.size) for shard in shards})
    for shard in shards:
        content = shard.data()
        assert content.nbytes == size_bytes(shard.whole.dtype, shard.size), shard.name
        yield content


def write_manifest(folder: Path, kind: str, parts: Sequence[ShardManifest]) -> None:
    """Merges the manifests of all ranks, and writes the result.

    Raises WorkError if the parts do not form complete tensors, or if a rank's file is missing, because written to
    another folder.
    """
    tensors: dict[str, ShardedTensor] = {}
    for share in parts:
        for tensor in share.tensors:
            merged = tensors.setdefault(tensor.name, tensor)
            if merged is tensor:
                continue
            if (merged.dtype, merged.shape) != (tensor.dtype, tensor.shape):
                raise WorkError(
                    f"the ranks disagree on {kind} tensor {tensor.name!r}: "
                    f"{merged.dtype} {merged.shape} and {tensor.dtype} {tensor.shape}"
                )
            tensors[tensor.name] = msgspec.structs.replace(merged, parts=(*merged.parts, *tensor.parts))
    for whole in tensors.values():
        if why := _not_whole(whole):
            raise WorkError(f"the ranks wrote no whole {kind} tensor {whole.name!r}: {why}", where=str(folder))
    files = tuple(file for share in parts for file in share.files)
    for file in files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size_bytes:
            raise WorkError(
                f"rank {file.rank} has written its part of the {kind}, and it is not to be seen by rank 0",
                where=str(path),
                field="checkpoint_root_dir",
                fix="name a folder that all nodes share",
            )
    manifest = ShardManifest(ranks=len(parts), files=files, tensors=tuple(tensors.values()))
    _path(folder, kind).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def is_sharded(folder: Path, kind: str) -> bool:
    """True if the tensors of this kind were written in parts."""
    return _path(folder, kind).is_file()


class ShardedTensors:
    """The tensors of a checkpoint in parts, readable in boxes of any size. Files are mapped: parts outside of a box are
    not read.
    """

    def __init__(self, manifest: ShardManifest, folder: Path, kind: str) -> None:
        """For internal use: call `open`."""
        self._manifest = manifest
        self._folder = folder
        self._kind = kind
        self._tensors = {tensor.name: tensor for tensor in manifest.tensors}
        self._mapped: dict[int, dict[str, TensorBytes]] = {}

    @classmethod
    def open(cls, folder: Path, kind: str) -> ShardedTensors:
        """Returns the tensors named by a manifest. Raises DataError for a missing, unreadable or self-contradictory
        manifest, or one of another format, and for a missing or truncated file.
        """
        path = _path(folder, kind)
        try:
            manifest = json_decoder(ShardManifest).decode(path.read_bytes())
        except (OSError, *UNREADABLE) as error:
            raise DataError(f"no manifest of a checkpoint in parts: {error}", where=str(path), fix=_FIX) from error
        if manifest.format != FORMAT:
            raise DataError(
                f"the checkpoint has format {manifest.format}, this program reads {FORMAT}",
                where=str(path),
                fix="use the program that wrote it",
            )
        _check(manifest, path)
        for file in manifest.files:
            shard_path = folder / file.name
            found_bytes = shard_path.stat().st_size if shard_path.is_file() else None
            if found_bytes is None:
                raise DataError(f"the {kind} of rank {file.rank} is missing", where=str(shard_path), fix=_FIX)
            if found_bytes != file.size_bytes:
                raise DataError(
                    f"the {kind} of rank {file.rank} has {found_bytes} bytes instead of {file.size_bytes}",
                    where=str(shard_path),
                    fix=_FIX,
                )
        return cls(manifest, folder, kind)

    def verify(self, *, reader: int = 0, readers: int = 1) -> None:
        """Raises DataError for a file with changed bytes. Each of several readers checks every `readers`-th file, from
        number `reader` on.

        Every byte of these files is read.
        """
        for file in self._manifest.files[reader::readers]:
            digest = xxhash.xxh3_128()
            with (self._folder / file.name).open("rb") as content:
                while block := content.read(_READ_BYTES):
                    digest.update(block)
            if digest.hexdigest() != file.xxh3:
                raise DataError(
                    f"the {self._kind} of rank {file.rank} has other bytes than were written",
                    where=str(self._folder / file.name),
                    fix=_FIX,
                )

    @property
    def manifest(self) -> ShardManifest:
        """The files and tensors, and the location of each part."""
        return self._manifest

    def layouts(self) -> dict[str, TensorLayout]:
        """Returns dtype and complete shape of each tensor, by name."""
        return {name: TensorLayout(tensor.dtype, tensor.shape) for name, tensor in self._tensors.items()}

    def check_fits(self, expected: Mapping[str, TensorLayout]) -> None:
        """Raises DataError, naming the first difference, unless the tensors are exactly as expected."""
        stored = self.layouts()
        wrong = sorted(stored.keys() ^ expected.keys()) or sorted(
            name for name in stored if stored[name] != expected[name]
        )
        if not wrong:
            return
        name = wrong[0]
        texts = [
            f"{layouts[name].dtype} {layouts[name].shape}" if name in layouts else "nothing"
            for layouts in (stored, expected)
        ]
        raise DataError(
            f"the {self._kind} is of another model: {name!r} is {texts[0]} there, and {texts[1]} here",
            where=str(self._folder),
            fix="resume with the model that the checkpoint was made from",
        )

    def whole(self, name: str) -> TensorBytes:
        """Reads a complete tensor, assembled from its parts. Raises DataError for a file that is not in the safetensors
        format, or lacks a part.
        """
        shape = self._tensors[name].shape
        return self.read(name, (0,) * len(shape), shape)

    def read(self, name: str, offset: tuple[int, ...], size: tuple[int, ...]) -> TensorBytes:
        """Reads a box of a tensor from the overlapping parts; a box equal to a stored part is not copied."""
        tensor = self._tensors[name]
        if not tensor.shape:
            return self._part(tensor, tensor.parts[0])
        words = np.dtype(f"u{ITEM_BYTES[tensor.dtype]}")
        for stored_part in tensor.parts:
            if (stored_part.offset, stored_part.size) == (offset, size):
                return self._part(tensor, stored_part)
        box: NDArray[Any] = np.empty(size, words)
        for stored_part in tensor.parts:
            begin = tuple(map(max, offset, stored_part.offset))
            end = tuple(map(min, _end(offset, size), _end(stored_part.offset, stored_part.size)))
            if any(low >= high for low, high in zip(begin, end, strict=True)):
                continue
            stored_box = np.frombuffer(self._part(tensor, stored_part).data, words).reshape(stored_part.size)
            box[_slices(begin, end, offset)] = stored_box[_slices(begin, end, stored_part.offset)]
        return TensorBytes(tensor.dtype, size, box.reshape(-1).view(np.uint8).data)

    def _part(self, tensor: ShardedTensor, stored_part: PartPlace) -> TensorBytes:
        """Returns a stored part, from its mapped file. Raises DataError."""
        if stored_part.rank not in self._mapped:
            file = next(shard_file for shard_file in self._manifest.files if shard_file.rank == stored_part.rank)
            path = self._folder / file.name
            try:
                self._mapped[stored_part.rank] = safetensors.read(path)
            except WorkError as error:
                raise DataError(
                    f"the {self._kind} of rank {stored_part.rank}: {error.what}", where=str(path)
                ) from error
        tensor_bytes = self._mapped[stored_part.rank].get(tensor.name)
        if tensor_bytes is None or (tensor_bytes.dtype, tensor_bytes.shape) != (tensor.dtype, stored_part.size):
            raise DataError(
                f"the {self._kind} of rank {stored_part.rank} does not hold the part of {tensor.name!r} "
                f"that its manifest names",
                where=str(self._folder),
                fix=_FIX,
            )
        return tensor_bytes


def _check(manifest: ShardManifest, path: Path) -> None:
    """Raises DataError for a self-contradictory manifest: the author may be an untrusted program."""
    ranks = {file.rank for file in manifest.files}
    wrong = ""
    if len(ranks) != len(manifest.files) or ranks != set(range(manifest.ranks)):
        missing = sorted(set(range(manifest.ranks)) - ranks)
        wrong = f"it names {len(manifest.files)} files of {manifest.ranks} ranks, none of {missing}"
    for file in manifest.files:
        if Path(file.name).name != file.name:
            wrong = f"{file.name[:80]!r} is not the name of a file in its folder"
    for tensor in manifest.tensors:
        if any(part_place.rank not in ranks for part_place in tensor.parts):
            wrong = f"tensor {tensor.name!r} has a part in a file that it does not name"
        elif tensor.dtype not in ITEM_BYTES:
            wrong = f"tensor {tensor.name!r} is of dtype {tensor.dtype[:80]!r}"
        elif why := _not_whole(tensor):
            wrong = f"tensor {tensor.name!r} is not whole: {why}"
    if wrong:
        raise DataError(f"the manifest contradicts itself: {wrong}", where=str(path), fix=_FIX)


def _not_whole(tensor: ShardedTensor) -> str:
    """Returns why the parts do not cover each number of the tensor exactly once; empty for a complete cover."""
    for box in tensor.parts:
        inside = len(box.offset) == len(box.size) == len(tensor.shape) and all(
            begin >= 0 and extent >= 0 and begin + extent <= limit
            for begin, extent, limit in zip(box.offset, box.size, tensor.shape, strict=True)
        )
        if not inside:
            return f"the part of rank {box.rank} at {box.offset} of {box.size} lies outside of {tensor.shape}"
    solid = [box for box in tensor.parts if math.prod(box.size)]
    # Parts without overlap, with as many numbers as the whole, are the whole.
    for number, box in enumerate(solid):
        for earlier in solid[:number]:
            if _overlap(box, earlier):
                return f"the parts of ranks {earlier.rank} and {box.rank} overlap"
    covered = sum(math.prod(box.size) for box in tensor.parts)
    required = math.prod(tensor.shape)
    return "" if covered == required else f"its parts have {covered} of {required} numbers"


def _overlap(box: PartPlace, earlier: PartPlace) -> bool:
    """True if two boxes of a tensor share a number."""
    return all(
        max(first, second) < min(first + extent, second + reach)
        for first, extent, second, reach in zip(box.offset, box.size, earlier.offset, earlier.size, strict=True)
    )


def _end(offset: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the end index of a box along each dimension."""
    return tuple(begin + extent for begin, extent in zip(offset, size, strict=True))


def _slices(begin: tuple[int, ...], end: tuple[int, ...], offset: tuple[int, ...]) -> tuple[slice, ...]:
    """Returns the box from `begin` to `end`, as indices into an array beginning at `offset`."""
    return tuple(slice(low - at, high - at) for low, high, at in zip(begin, end, offset, strict=True))


def _path(folder: Path, kind: str) -> Path:
    """Returns the path of the manifest over all parts of a kind, such as `optimizer`."""
    return folder / f"{kind}.shards.json"
