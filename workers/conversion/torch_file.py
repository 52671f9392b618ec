"""The archive that `torch.save` writes, read without torch: a zip file of a pickle, and of each storage's bytes.

    NAME/data.pkl   the objects; a tensor in it is a storage's name, an offset, a shape and strides
    NAME/data/0     the bytes of storage 0, not compressed

The pickle is never run (`pickled`). Tensors are places in the file, and none of their bytes is read before somebody
asks for them. Layout: torch/serialization.py and torch/_utils.py of torch 2.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import DataError
from rftd.workers.conversion.pickled import (
    DAMAGE,
    MAX_PICKLE_BYTES,
    InertObject,
    Name,
    Value,
    field_of,
    read_pickle,
)
from rftd.workers.weights.tensor_bytes import ITEM_BYTES

FIX: Final = "copy the checkpoint again, or convert another one"
_STORAGES: Final = {
    "torch.BoolStorage": "bool",
    "torch.ByteStorage": "uint8",
    "torch.CharStorage": "int8",
    "torch.ShortStorage": "int16",
    "torch.IntStorage": "int32",
    "torch.LongStorage": "int64",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64",
}
_UNTYPED: Final = "torch.storage.UntypedStorage"
_TENSOR: Final = "torch._utils._rebuild_tensor_v2"
_TENSOR_OF_DTYPE: Final = "torch._utils._rebuild_tensor_v3"
_PARAMETERS: Final = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_SUBCLASS: Final = "torch._tensor._rebuild_from_type_v2"
_SPREAD: Final = "torch._utils._rebuild_wrapper_subclass"
PLACEMENT: Final = "torch.distributed.tensor.placement_types"
_SPEC: Final = "torch.distributed.tensor._dtensor_spec"
_MESH: Final = "torch.distributed._mesh_layout"
NAMES: Final = frozenset(
    {
        *_STORAGES,
        *(f"torch.{dtype}" for dtype in ITEM_BYTES),
        *_PARAMETERS,
        _UNTYPED,
        _TENSOR,
        _TENSOR_OF_DTYPE,
        _SUBCLASS,
        _SPREAD,
        "torch.Tensor",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.nn.parameter.Buffer",
        "torch.serialization._get_layout",
        "torch.distributed.device_mesh.DeviceMesh",
        "torch.distributed._tensor.api.DTensor",
        "torch.distributed.tensor.DTensor",
        "torch.distributed.tensor._api.DTensor",
        f"{_MESH}._MeshLayout",
        f"{_MESH}._FlatLayout",
        f"{_SPEC}.DTensorSpec",
        f"{_SPEC}.ShardOrderEntry",
        f"{_SPEC}.TensorMeta",
        f"{PLACEMENT}.Shard",
        f"{PLACEMENT}.Replicate",
        f"{PLACEMENT}.Partial",
        f"{PLACEMENT}._StridedShard",
    }
)
"""Every name that the description of a tensor has; a file that has another one is refused."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place in a file: no number of it is in memory."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In numbers, as torch counts."""
    begin_bytes: int

    def read_into(self, box: NDArray[Any], offset: tuple[int, ...]) -> None:
        """Fills a box, of words of the dtype's size, with what lies at the offset.

        Raises DataError if the file was cut off meanwhile.
        """
        if not box.size:
            return
        begin_bytes = self.begin_bytes + box.itemsize * sum(
            at * stride for at, stride in zip(offset, self.strides, strict=True)
        )
        wanted = zip(box.shape, self.strides, c_strides(box.shape), strict=True)
        if box.flags.c_contiguous and all(extent == 1 or stride == plain for extent, stride, plain in wanted):
            self._fill(box.reshape(-1), begin_bytes)
            return
        # From its first number to its last, with what lies in between.
        found = np.empty(_extent(box.shape, self.strides), box.dtype)
        self._fill(found, begin_bytes)
        steps = tuple(stride * box.itemsize for stride in self.strides)
        box[...] = np.lib.stride_tricks.as_strided(found, box.shape, steps)

    def _fill(self, numbers: NDArray[Any], begin_bytes: int) -> None:
        with self.path.open("rb", buffering=0) as file:
            file.seek(begin_bytes)
            left = numbers.view(np.uint8).data
            while left.nbytes:
                count = file.readinto(left)
                if not count:
                    raise DataError("the file is cut off", where=str(self.path), fix=FIX)
                left = left[count:]


@dataclass(frozen=True, slots=True)
class SpreadTensor:
    """A rank's part of a DTensor, and how torch spread the whole over the ranks."""

    local: StoredTensor
    shape: tuple[int, ...]
    """Of the whole."""
    placements: tuple[int | None, ...]
    """For each dimension of the mesh of ranks: the dimension along which the tensor is cut; None for equal copies."""
    coordinate: tuple[int, ...]
    """The rank's place in the mesh."""


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The numbers from the first to the last one of a tensor that has some."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in numbers, of a tensor whose numbers follow one another."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


class _Section(io.RawIOBase):
    """A part of a file as a file of its own: an archive may lie among others."""

    def __init__(self, path: Path, begin: int, size: int) -> None:
        self._file = path.open("rb")
        self._begin = begin
        self._size = size
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._begin + self._at)
        found = self._file.read(left if size < 0 else min(size, left))
        self._at += len(found)
        return found

    def close(self) -> None:
        self._file.close()
        super().close()


def read_torch_file(path: Path, *, begin: int = 0, size: int | None = None) -> Value:
    """What the archive describes, with `StoredTensor`s and `SpreadTensor`s in the place of tensors.

    That is a tensor, or a mapping or list that holds some on its first level; what is no tensor is left as it is.
    Raises DataError if the file is none of torch's, is cut off, or wants a name that no tensor needs.
    """
    try:
        section = _Section(path, begin, path.stat().st_size - begin if size is None else size)
        with section, zipfile.ZipFile(section) as archive:
            entries = {_inner(entry.filename): entry for entry in archive.infolist()}
            order = archive.read(entries["byteorder"]) if "byteorder" in entries else b"little"
            if entries["data.pkl"].file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"its description of tensors has {entries['data.pkl'].file_size} bytes")
            pickled = archive.read(entries["data.pkl"])
            places = {
                name.removeprefix("data/"): (begin + _data_of(section, entry), entry.file_size)
                for name, entry in entries.items()
                if name.startswith("data/") and entry.compress_type == zipfile.ZIP_STORED
            }
        if order != b"little":
            raise ValueError("its numbers are big-endian")
        value = read_pickle(pickled, NAMES, path)
        return _Tensors(path, places).in_(value)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, *DAMAGE) as error:
        what = "it has no data.pkl" if isinstance(error, KeyError) and error.args == ("data.pkl",) else str(error)
        raise DataError(
            f"the file is none that torch wrote, or is cut off: {what}", where=str(path), fix=FIX
        ) from error


def _inner(name: str) -> str:
    return name.partition("/")[2]


def _data_of(section: _Section, entry: zipfile.ZipInfo) -> int:
    """The place of an entry's bytes: behind its own header, whose length the index at the end does not tell."""
    section.seek(entry.header_offset)
    head = section.read(30)
    name_bytes, extra_bytes = struct.unpack("<HH", head[26:30])
    return entry.header_offset + 30 + int(name_bytes) + int(extra_bytes)


class _Tensors:
    """Records of one file as tensors."""

    def __init__(self, path: Path, places: dict[str, tuple[int, int]]) -> None:
        self._path = path
        self._places = places

    def in_(self, value: Value) -> Value:
        if isinstance(value, dict):
            return {key: self._tensor(each) for key, each in value.items()}
        return [self._tensor(each) for each in value] if isinstance(value, list) else self._tensor(value)

    def _tensor(self, value: Value) -> Value:
        if not isinstance(value, InertObject):
            return value
        if value.name in _PARAMETERS:
            return self._tensor(value.arguments[0])
        if value.name == _SUBCLASS:
            function, _, arguments, state = value.arguments
            made = InertObject(function.text, arguments)
            if function.text == _SPREAD:
                return self._spread(state)
            return self._tensor(made)
        if value.name in (_TENSOR, _TENSOR_OF_DTYPE):
            return self._stored(value)
        return value

    def _stored(self, value: InertObject) -> StoredTensor:
        storage, offset, shape, strides = value.arguments[:4]
        kind, name, key, _, _ = storage.arguments[0]
        if kind != "storage" or not isinstance(name, Name):
            raise ValueError("a tensor has no storage")
        dtype = _STORAGES.get(name.text, "")
        if value.name == _TENSOR_OF_DTYPE:
            dtype = value.arguments[6].text.removeprefix("torch.")
        item_bytes = ITEM_BYTES[dtype]
        begin_bytes, size_bytes = self._places[key]
        numbers = (offset, *shape, *strides)
        if not all(isinstance(each, int) and each >= 0 for each in numbers) or len(shape) != len(strides):
            raise ValueError(f"a tensor lies at {offset!r} with shape {shape!r} and strides {strides!r}")
        extent = _extent(shape, strides)
        count = math.prod(shape)
        # More numbers than its bytes hold would be repeated ones: a small file that writes a large one.
        if count and ((offset + extent) * item_bytes > size_bytes or count > extent):
            raise ValueError(f"a tensor of shape {shape} lies beyond the end of its {size_bytes} bytes")
        return StoredTensor(self._path, dtype, tuple(shape), tuple(strides), begin_bytes + offset * item_bytes)

    def _spread(self, state: Value) -> SpreadTensor:
        local = self._tensor(field_of(state, "_local_tensor"))
        spec = field_of(state, "_spec")
        coordinate = spec.get("mesh").get("_coordinate_on_dim")
        placements = tuple(_cut_along(each) for each in spec.get("placements"))
        meta = spec.get("tensor_meta")
        shape = meta.arguments[0]
        if not isinstance(local, StoredTensor) or coordinate is None or len(coordinate) != len(placements):
            raise ValueError("a tensor is spread over ranks in a way that is not known here")
        if not all(isinstance(each, int) and each >= 0 for each in (*shape, *coordinate)):
            raise ValueError(f"a tensor of shape {shape!r} is spread over ranks at {coordinate!r}")
        return SpreadTensor(local, tuple(shape), placements, tuple(coordinate))


def _cut_along(placement: InertObject) -> int | None:
    kind = placement.name.removeprefix(f"{PLACEMENT}.")
    if kind == "Replicate":
        return None
    dim = placement.get("dim") if kind == "Shard" else None
    if not isinstance(dim, int) or dim < 0:
        raise ValueError(f"a tensor is placed as {kind}, which cannot be put together here")
    return dim
