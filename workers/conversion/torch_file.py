"""The archive written by `torch.save`, read without torch: a zip file of a pickle, and of each storage's bytes.

    NAME/data.pkl   the objects; a tensor in it is a storage's name, an offset, a shape and strides
    NAME/data/0     the bytes of storage 0, not compressed

The pickle is never run (`pickled`). Tensors are positions in the file, and none of their bytes is read before use.
Layout: torch/serialization.py and torch/_utils.py of torch 2.
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
"""Fix of errors about an unreadable file."""
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
"""Dtype by the name of torch's typed storage."""
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
"""Every name in a description of a tensor; a file with any other name is refused."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's position in a file: none of its numbers is in memory."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Strides in numbers, as in torch."""
    begin_bytes: int

    def read_into(self, box: NDArray[Any], offset: tuple[int, ...]) -> None:
        """Fills a box, of words of the dtype's size, with the numbers at the offset.

        Raises DataError if the file was cut off meanwhile.
        """
        if not box.size:
            return
        begin_bytes = self.begin_bytes + box.itemsize * sum(
            at * stride for at, stride in zip(offset, self.strides, strict=True)
        )
        dimensions = zip(box.shape, self.strides, c_strides(box.shape), strict=True)
        if box.flags.c_contiguous and all(extent == 1 or stride == plain for extent, stride, plain in dimensions):
            self._fill(box.reshape(-1), begin_bytes)
            return
        # From its first number to its last, including numbers in between.
        span = np.empty(_extent(box.shape, self.strides), box.dtype)
        self._fill(span, begin_bytes)
        steps = tuple(stride * box.itemsize for stride in self.strides)
        box[...] = np.lib.stride_tricks.as_strided(span, box.shape, steps)

    def _fill(self, numbers: NDArray[Any], begin_bytes: int) -> None:
        """Reads consecutive numbers from an offset in the file. Raises DataError at an early end."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(begin_bytes)
            remaining = numbers.view(np.uint8).data
            while remaining.nbytes:
                count = file.readinto(remaining)
                if not count:
                    raise DataError("the file is cut off", where=str(self.path), fix=FIX)
                remaining = remaining[count:]


@dataclass(frozen=True, slots=True)
class SpreadTensor:
    """A rank's part of a DTensor, and how torch divided the complete tensor over the ranks."""

    local: StoredTensor
    shape: tuple[int, ...]
    """Shape of the complete tensor."""
    placements: tuple[int | None, ...]
    """For each dimension of the mesh of ranks: the dimension along which the tensor is cut; None for equal copies."""
    coordinate: tuple[int, ...]
    """The rank's coordinate in the mesh."""


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns the count of numbers from the first to the last of a tensor that is not empty."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides, in numbers, of a contiguous tensor."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


class _Section(io.RawIOBase):
    """A section of a file as a file of its own: an archive may lie among others."""

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
        remaining = max(0, self._size - self._at)
        self._file.seek(self._begin + self._at)
        chunk = self._file.read(remaining if size < 0 else min(size, remaining))
        self._at += len(chunk)
        return chunk

    def close(self) -> None:
        self._file.close()
        super().close()


def read_torch_file(path: Path, *, begin: int = 0, size: int | None = None) -> Value:
    """Returns the objects of the archive, with `StoredTensor`s and `SpreadTensor`s in the place of tensors.

    The result is a tensor, or a mapping or list with some on its first level; other objects stay unchanged. Raises
    DataError if the file was not written by torch, is cut off, or contains a name without use for tensors.
    """
    try:
        section = _Section(path, begin, path.stat().st_size - begin if size is None else size)
        with section, zipfile.ZipFile(section) as archive:
            members = {_inner(member.filename): member for member in archive.infolist()}
            order = archive.read(members["byteorder"]) if "byteorder" in members else b"little"
            if members["data.pkl"].file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"its description of tensors has {members['data.pkl'].file_size} bytes")
            pickled = archive.read(members["data.pkl"])
            storages = {
                name.removeprefix("data/"): (begin + _data_of(section, member), member.file_size)
                for name, member in members.items()
                if name.startswith("data/") and member.compress_type == zipfile.ZIP_STORED
            }
        if order != b"little":
            raise ValueError("its numbers are big-endian")
        content = read_pickle(pickled, NAMES, path)
        return _Tensors(path, storages).in_(content)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, *DAMAGE) as error:
        problem = "it has no data.pkl" if isinstance(error, KeyError) and error.args == ("data.pkl",) else str(error)
        raise DataError(
            f"the file was not written by torch, or is cut off: {problem}", where=str(path), fix=FIX
        ) from error


def _inner(name: str) -> str:
    return name.partition("/")[2]


def _data_of(section: _Section, member: zipfile.ZipInfo) -> int:
    """Returns the offset of a member's bytes, behind a header whose length is missing in the index at the end."""
    section.seek(member.header_offset)
    head = section.read(30)
    name_bytes, extra_bytes = struct.unpack("<HH", head[26:30])
    return member.header_offset + 30 + int(name_bytes) + int(extra_bytes)


class _Tensors:
    """Turns the inert objects of one file into tensors."""

    def __init__(self, path: Path, places: dict[str, tuple[int, int]]) -> None:
        self._path = path
        self._places = places

    def in_(self, content: Value) -> Value:
        """Returns the content with tensors on its first level in place of inert objects."""
        if isinstance(content, dict):
            return {key: self._tensor(child) for key, child in content.items()}
        return [self._tensor(child) for child in content] if isinstance(content, list) else self._tensor(content)

    def _tensor(self, node: Value) -> Value:
        """Returns the tensor described by a call, or the node itself for anything else."""
        if not isinstance(node, InertObject):
            return node
        if node.name in _PARAMETERS:
            return self._tensor(node.arguments[0])
        if node.name == _SUBCLASS:
            function, _, arguments, state = node.arguments
            call = InertObject(function.text, arguments)
            if function.text == _SPREAD:
                return self._spread(state)
            return self._tensor(call)
        if node.name in (_TENSOR, _TENSOR_OF_DTYPE):
            return self._stored(node)
        return node

    def _stored(self, call: InertObject) -> StoredTensor:
        """Returns a plain tensor's position in the file. Raises ValueError beyond the end of its storage."""
        storage, offset, shape, strides = call.arguments[:4]
        kind, name, key, _, _ = storage.arguments[0]
        if kind != "storage" or not isinstance(name, Name):
            raise ValueError("a tensor has no storage")
        dtype = _STORAGES.get(name.text, "")
        if call.name == _TENSOR_OF_DTYPE:
            dtype = call.arguments[6].text.removeprefix("torch.")
        item_bytes = ITEM_BYTES[dtype]
        begin_bytes, size_bytes = self._places[key]
        numbers = (offset, *shape, *strides)
        if not all(isinstance(number, int) and number >= 0 for number in numbers) or len(shape) != len(strides):
            raise ValueError(f"a tensor lies at {offset!r} with shape {shape!r} and strides {strides!r}")
        extent = _extent(shape, strides)
        count = math.prod(shape)
        # More numbers than bytes would mean repeated ones: a small file that writes a large one.
        if count and ((offset + extent) * item_bytes > size_bytes or count > extent):
            raise ValueError(f"a tensor of shape {shape} lies beyond the end of its {size_bytes} bytes")
        return StoredTensor(self._path, dtype, tuple(shape), tuple(strides), begin_bytes + offset * item_bytes)

    def _spread(self, state: Value) -> SpreadTensor:
        """Returns a DTensor's local part with its placement. Raises ValueError for an unknown one."""
        local = self._tensor(field_of(state, "_local_tensor"))
        spec = field_of(state, "_spec")
        coordinate = spec.get("mesh").get("_coordinate_on_dim")
        placements = tuple(_cut_along(placement) for placement in spec.get("placements"))
        meta = spec.get("tensor_meta")
        shape = meta.arguments[0]
        if not isinstance(local, StoredTensor) or coordinate is None or len(coordinate) != len(placements):
            raise ValueError("a tensor is spread over ranks in an unsupported way")
        if not all(isinstance(number, int) and number >= 0 for number in (*shape, *coordinate)):
            raise ValueError(f"a tensor of shape {shape!r} is spread over ranks at {coordinate!r}")
        return SpreadTensor(local, tuple(shape), placements, tuple(coordinate))


def _cut_along(placement: InertObject) -> int | None:
    """Returns the dimension of a placement's cut; None for copies. Raises ValueError for other placements."""
    kind = placement.name.removeprefix(f"{PLACEMENT}.")
    if kind == "Replicate":
        return None
    dim = placement.get("dim") if kind == "Shard" else None
    if not isinstance(dim, int) or dim < 0:
        raise ValueError(f"a tensor is placed as {kind}, which is not supported")
    return dim
