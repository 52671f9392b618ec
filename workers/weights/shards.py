"""Tensors of a checkpoint in parts: each rank's in a safetensors file of its own, and one manifest over all files.

    actor/optimizer.rank_0_of_2.safetensors   the parts that rank 0 had
    actor/optimizer.rank_1_of_2.safetensors
    actor/optimizer.shards.json               what lies where; written last

A part is a box of its tensor. Each number lies in exactly one part, and is read by any number of ranks, in boxes of
their own: nothing says that those are the boxes that were written.
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
_FIX: Final = "resume from an earlier checkpoint"
_READ_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a tensor."""

    name: str
    whole: TensorLayout
    offset: tuple[int, ...]
    size: tuple[int, ...]
    data: Callable[[], memoryview]
    """The part's bytes in C order, flat; called once, so that no more than one part need be on the host."""


class PartPlace(msgspec.Struct, frozen=True, array_like=True):
    """The box of a tensor that the file of a rank holds."""

    rank: int
    offset: tuple[int, ...]
    size: tuple[int, ...]


class ShardedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor, and where its parts are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[PartPlace, ...]


class ShardFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of one rank."""

    rank: int
    name: str
    size_bytes: int
    xxh3: str


class ShardManifest(msgspec.Struct, frozen=True, kw_only=True):
    """All files and tensors; of one rank, before they are put together, its own."""

    format: int = FORMAT
    ranks: int
    files: tuple[ShardFile, ...]
    tensors: tuple[ShardedTensor, ...]


def write_part(folder: Path, kind: str, shards: Sequence[Shard], *, rank: int, ranks: int) -> ShardManifest:
    """Writes the file of one rank, which is not synced; returns its share of the manifest. Raises OSError."""
    name = f"{kind}.rank_{rank}_of_{ranks}.safetensors"
    digest = xxhash.xxh3_128()
    written_bytes = 0
    with (folder / name).open("wb") as file:
        for data in _file_bytes(shards):
            file.write(data)
            digest.update(data)
            written_bytes += len(data)
    tensors = (
        ShardedTensor(
            name=each.name,
            dtype=each.whole.dtype,
            shape=each.whole.shape,
            parts=(PartPlace(rank, each.offset, each.size),),
        )
        for each in shards
    )
    wrote = ShardFile(rank=rank, name=name, size_bytes=written_bytes, xxh3=digest.hexdigest())
    return ShardManifest(ranks=ranks, files=(wrote,), tensors=tuple(tensors))


def _file_bytes(shards: Sequence[Shard]) -> Iterator[bytes | memoryview]:
    yield safetensors.header_of({each.name: TensorLayout(each.whole.dtype, each.size) for each in shards})
    for each in shards:
        data = each.data()
        assert data.nbytes == size_bytes(each.whole.dtype, each.size), each.name
        yield data


def write_manifest(folder: Path, kind: str, parts: Sequence[ShardManifest]) -> None:
    """Writes the manifest over the shares of all ranks.

    Raises WorkError if they are no whole tensors, or if the file of one is not there: it went to another folder.
    """
    tensors: dict[str, ShardedTensor] = {}
    for part in parts:
        for each in part.tensors:
            known = tensors.setdefault(each.name, each)
            if known is each:
                continue
            if (known.dtype, known.shape) != (each.dtype, each.shape):
                raise WorkError(
                    f"the ranks disagree on {kind} tensor {each.name!r}: "
                    f"{known.dtype} {known.shape} and {each.dtype} {each.shape}"
                )
            tensors[each.name] = msgspec.structs.replace(known, parts=(*known.parts, *each.parts))
    for whole in tensors.values():
        if why := _not_whole(whole):
            raise WorkError(f"the ranks wrote no whole {kind} tensor {whole.name!r}: {why}", where=str(folder))
    files = tuple(file for part in parts for file in part.files)
    for file in files:
        there = folder / file.name
        if not there.is_file() or there.stat().st_size != file.size_bytes:
            raise WorkError(
                f"rank {file.rank} has written its part of the {kind}, and it is not to be seen by rank 0",
                where=str(there),
                field="checkpoint_root_dir",
                fix="name a folder that all nodes share",
            )
    manifest = ShardManifest(ranks=len(parts), files=files, tensors=tuple(tensors.values()))
    _path(folder, kind).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def is_sharded(folder: Path, kind: str) -> bool:
    """True if the tensors of this kind were written in parts."""
    return _path(folder, kind).is_file()


class ShardedTensors:
    """The tensors of one manifest, to be read in any parts. Files are mapped: what nobody asks for is not read."""

    def __init__(self, manifest: ShardManifest, folder: Path, kind: str) -> None:
        """Use `open`."""
        self._manifest = manifest
        self._folder = folder
        self._kind = kind
        self._tensors = {each.name: each for each in manifest.tensors}
        self._mapped: dict[int, dict[str, TensorBytes]] = {}

    @classmethod
    def open(cls, folder: Path, kind: str) -> ShardedTensors:
        """The tensors that a manifest names. Raises DataError if it, or a file that it names, is missing or cut off."""
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
            there = folder / file.name
            found_bytes = there.stat().st_size if there.is_file() else None
            if found_bytes is None:
                raise DataError(f"the {kind} of rank {file.rank} is missing", where=str(there), fix=_FIX)
            if found_bytes != file.size_bytes:
                raise DataError(
                    f"the {kind} of rank {file.rank} has {found_bytes} bytes instead of {file.size_bytes}",
                    where=str(there),
                    fix=_FIX,
                )
        return cls(manifest, folder, kind)

    def verify(self, *, reader: int = 0, readers: int = 1) -> None:
        """Raises DataError for a file with other bytes than were written. Of several readers each looks at its share.

        Every byte is read.
        """
        for file in self._manifest.files[reader::readers]:
            digest = xxhash.xxh3_128()
            with (self._folder / file.name).open("rb") as data:
                while block := data.read(_READ_BYTES):
                    digest.update(block)
            if digest.hexdigest() != file.xxh3:
                raise DataError(
                    f"the {self._kind} of rank {file.rank} has other bytes than were written",
                    where=str(self._folder / file.name),
                    fix=_FIX,
                )

    @property
    def manifest(self) -> ShardManifest:
        """The files and tensors, and where each part lies."""
        return self._manifest

    def layouts(self) -> dict[str, TensorLayout]:
        """The dtype and the whole shape of each tensor, by name."""
        return {name: TensorLayout(each.dtype, each.shape) for name, each in self._tensors.items()}

    def check_fits(self, wanted: Mapping[str, TensorLayout]) -> None:
        """Raises DataError, naming the first difference, unless these tensors are wanted, no more and no others."""
        here = self.layouts()
        wrong = sorted(here.keys() ^ wanted.keys()) or sorted(name for name in here if here[name] != wanted[name])
        if not wrong:
            return
        name = wrong[0]
        texts = [f"{each[name].dtype} {each[name].shape}" if name in each else "nothing" for each in (here, wanted)]
        raise DataError(
            f"the {self._kind} is of another model: {name!r} is {texts[0]} there, and {texts[1]} here",
            where=str(self._folder),
            fix="resume with the model that the checkpoint was made from",
        )

    def whole(self, name: str) -> TensorBytes:
        """A whole tensor, put together. Raises DataError if a file is no safetensors file with its parts."""
        shape = self._tensors[name].shape
        return self.read(name, (0,) * len(shape), shape)

    def read(self, name: str, offset: tuple[int, ...], size: tuple[int, ...]) -> TensorBytes:
        """A box of a tensor. Only what it overlaps is read; a box that was written as such is not copied."""
        tensor = self._tensors[name]
        if not tensor.shape:
            return self._part(tensor, tensor.parts[0])
        words = np.dtype(f"u{ITEM_BYTES[tensor.dtype]}")
        for place in tensor.parts:
            if (place.offset, place.size) == (offset, size):
                return self._part(tensor, place)
        made: NDArray[Any] = np.empty(size, words)
        for place in tensor.parts:
            begin = tuple(map(max, offset, place.offset))
            end = tuple(map(min, _end(offset, size), _end(place.offset, place.size)))
            if any(low >= high for low, high in zip(begin, end, strict=True)):
                continue
            there = np.frombuffer(self._part(tensor, place).data, words).reshape(place.size)
            made[_slices(begin, end, offset)] = there[_slices(begin, end, place.offset)]
        return TensorBytes(tensor.dtype, size, made.reshape(-1).view(np.uint8).data)

    def _part(self, tensor: ShardedTensor, place: PartPlace) -> TensorBytes:
        if place.rank not in self._mapped:
            file = next(each for each in self._manifest.files if each.rank == place.rank)
            path = self._folder / file.name
            try:
                self._mapped[place.rank] = safetensors.read(path)
            except WorkError as error:
                raise DataError(f"the {self._kind} of rank {place.rank}: {error.what}", where=str(path)) from error
        part = self._mapped[place.rank].get(tensor.name)
        if part is None or (part.dtype, part.shape) != (tensor.dtype, place.size):
            raise DataError(
                f"the {self._kind} of rank {place.rank} does not hold the part of {tensor.name!r} that its manifest "
                f"names",
                where=str(self._folder),
                fix=_FIX,
            )
        return part


def _check(manifest: ShardManifest, path: Path) -> None:
    """Raises DataError for a manifest that contradicts itself: whoever wrote it may be a stranger."""
    ranks = {file.rank for file in manifest.files}
    wrong = ""
    if len(ranks) != len(manifest.files) or ranks != set(range(manifest.ranks)):
        missing = sorted(set(range(manifest.ranks)) - ranks)
        wrong = f"it names {len(manifest.files)} files of {manifest.ranks} ranks, none of {missing}"
    for file in manifest.files:
        if Path(file.name).name != file.name:
            wrong = f"{file.name[:80]!r} is no name of a file beside it"
    for tensor in manifest.tensors:
        if any(part.rank not in ranks for part in tensor.parts):
            wrong = f"tensor {tensor.name!r} has a part in a file that it does not name"
        elif tensor.dtype not in ITEM_BYTES:
            wrong = f"tensor {tensor.name!r} is of dtype {tensor.dtype[:80]!r}"
        elif why := _not_whole(tensor):
            wrong = f"tensor {tensor.name!r} is not whole: {why}"
    if wrong:
        raise DataError(f"the manifest contradicts itself: {wrong}", where=str(path), fix=_FIX)


def _not_whole(tensor: ShardedTensor) -> str:
    """The reason why the parts are not each number of the tensor once; empty if they are."""
    for part in tensor.parts:
        inside = len(part.offset) == len(part.size) == len(tensor.shape) and all(
            begin >= 0 and extent >= 0 and begin + extent <= limit
            for begin, extent, limit in zip(part.offset, part.size, tensor.shape, strict=True)
        )
        if not inside:
            return f"the part of rank {part.rank} at {part.offset} of {part.size} lies outside of {tensor.shape}"
    solid = [part for part in tensor.parts if math.prod(part.size)]
    # Parts that do not overlap and have as many numbers as the whole are the whole.
    for number, one in enumerate(solid):
        for other in solid[:number]:
            if _overlap(one, other):
                return f"the parts of ranks {other.rank} and {one.rank} overlap"
    found = sum(math.prod(part.size) for part in tensor.parts)
    wanted = math.prod(tensor.shape)
    return "" if found == wanted else f"its parts have {found} of {wanted} numbers"


def _overlap(one: PartPlace, other: PartPlace) -> bool:
    return all(
        max(first, second) < min(first + extent, second + reach)
        for first, extent, second, reach in zip(one.offset, one.size, other.offset, other.size, strict=True)
    )


def _end(offset: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(begin + extent for begin, extent in zip(offset, size, strict=True))


def _slices(begin: tuple[int, ...], end: tuple[int, ...], offset: tuple[int, ...]) -> tuple[slice, ...]:
    """The box from `begin` to `end`, as places of an array that begins at `offset`."""
    return tuple(slice(low - at, high - at) for low, high, at in zip(begin, end, offset, strict=True))


def _path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.shards.json"
