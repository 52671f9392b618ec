"""A tensor with parts in several files, read in blocks of a few megabytes, in C order.

The module is independent of the parts' writer. At most one block is in memory at once, however large tensor and parts
are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import DataError
from rftd.workers.conversion.torch_file import FIX, StoredTensor
from rftd.workers.weights.tensor_bytes import ITEM_BYTES, TensorLayout

_BLOCK_BYTES: Final = 1 << 20
"""Bytes of a block: small enough for the processor's cache between check and write."""

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and size of a part, along each dimension."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A stored part of a tensor: its box within the tensor, and the position of its numbers in a file."""

    offset: tuple[int, ...]
    stored: StoredTensor


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A tensor to be written into a model folder, composed of boxes of a stored tensor, one after the other."""

    name: str
    layout: TensorLayout
    parts: tuple[TensorPart, ...]
    boxes: tuple[Box, ...]
    """Boxes of the stored tensor; their numbers, in C order and one box after the other, are this tensor's numbers."""
    dtype: str | None = None
    """Dtype of the numbers as written; None: the stored dtype."""

    @property
    def written(self) -> TensorLayout:
        """Returns dtype and shape as written."""
        return layout_in(self.layout, self.dtype)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yields the numbers to write as flat blocks of machine words, each as wide as a number; a block is valid until
        the next is requested.

        Raises DataError for a truncated file.
        """
        item_bytes = ITEM_BYTES[self.layout.dtype]
        room = np.empty(0, f"u{item_bytes}")
        for offset, size in self.boxes:
            count = math.prod(size)
            if not count:
                continue
            dim = next((dim for dim, extent in enumerate(size) if extent > 1), 0)
            row = math.prod(size[dim + 1 :])
            extent = count // row
            rows = min(max(1, _BLOCK_BYTES // (item_bytes * row)), extent)
            if room.size < rows * row:  # one for all blocks: the kernel would clear a new one page by page
                room = np.empty(rows * row, room.dtype)
            for begin in range(0, extent, rows):
                height = min(rows, extent - begin)
                block = room[: height * row]
                box = (*size[:dim], height, *size[dim + 1 :]) if size else ()
                at = (*offset[:dim], offset[dim] + begin, *offset[dim + 1 :]) if size else ()
                self._fill(block.reshape(box), at)
                yield block

    def files(self) -> list[Path]:
        """Returns the files that contain the numbers."""
        return list(dict.fromkeys(tensor_part.stored.path for tensor_part in self.parts))

    def _fill(self, box: NDArray[Any], offset: tuple[int, ...]) -> None:
        """Fills a box at an offset of the stored tensor, out of all parts that overlap it."""
        for tensor_part in self.parts:
            extent = tensor_part.stored.shape
            begin = [max(low, at) for low, at in zip(offset, tensor_part.offset, strict=True)]
            end = [
                min(low + wide, at + reach)
                for low, wide, at, reach in zip(offset, box.shape, tensor_part.offset, extent, strict=True)
            ]
            if any(low >= high for low, high in zip(begin, end, strict=True)):
                continue
            inner = tuple(slice(low - at, high - at) for low, high, at in zip(begin, end, offset, strict=True))
            part_offset = tuple(low - at for low, at in zip(begin, tensor_part.offset, strict=True))
            tensor_part.stored.read_into(box[inner] if inner else box, part_offset)


def whole(name: str, shape: tuple[int, ...], parts: Sequence[TensorPart]) -> WholeTensor:
    """Assembles a tensor from its stored parts, without reading numbers. Raises DataError, naming a file, unless the
    parts contain each number exactly once.
    """
    dtype = parts[0].stored.dtype
    for tensor_part in parts:
        stored = tensor_part.stored
        inside = len(shape) == len(stored.shape) == len(tensor_part.offset) and all(
            at >= 0 and at + extent <= limit
            for at, extent, limit in zip(tensor_part.offset, stored.shape, shape, strict=True)
        )
        if stored.dtype != dtype or not inside:
            raise DataError(
                f"{name!r} is {stored.dtype} {stored.shape} at {tensor_part.offset} here, and {dtype} {shape} in "
                f"{parts[0].stored.path.name}: the files are of different models",
                where=str(stored.path),
                fix=FIX,
            )
    for first, second in _neighbours(parts):
        if _overlap(first, second):
            raise DataError(
                f"the part of {name!r} at {first.offset} lies in {second.stored.path.name} as well",
                where=str(first.stored.path),
                fix=FIX,
            )
    numbers = sum(math.prod(tensor_part.stored.shape) for tensor_part in parts)
    if numbers != math.prod(shape):
        raise DataError(
            f"the parts of {name!r} have {numbers} of {math.prod(shape)} numbers",
            where=str(parts[0].stored.path),
            fix=FIX,
        )
    return WholeTensor(name, TensorLayout(dtype, shape), tuple(parts), (((0,) * len(shape), shape),))


def _neighbours(parts: Sequence[TensorPart]) -> Iterator[tuple[TensorPart, TensorPart]]:
    """Returns the pairs of parts that may overlap: neighbours for a tensor cut along one dimension, as most are."""
    solid = [tensor_part for tensor_part in parts if math.prod(tensor_part.stored.shape)]
    cut = [dim for dim in range(len(parts[0].offset)) if len({tensor_part.offset[dim] for tensor_part in solid}) > 1]
    if len(cut) == 1:
        return pairwise(sorted(solid, key=lambda tensor_part: tensor_part.offset[cut[0]]))
    return combinations(solid, 2)


def _overlap(first: TensorPart, second: TensorPart) -> bool:
    """True if two parts have a number in common."""
    return all(
        max(low, other_low) < min(low + extent, other_low + reach)
        for low, extent, other_low, reach in zip(
            first.offset, first.stored.shape, second.offset, second.stored.shape, strict=True
        )
    )


DTYPES: Final = ("bfloat16", "float16", "float32")
"""Dtypes that a converted model can be written in."""
_FLOATING: Final = (*DTYPES, "float64")


def layout_in(layout: TensorLayout, dtype: str | None) -> TensorLayout:
    """Returns the layout of a tensor converted to `dtype`; unchanged if `dtype` is None, and for integers."""
    return layout if dtype is None or layout.dtype not in _FLOATING else layout._replace(dtype=dtype)


def cast(block: NDArray[Any], stored: str, dtype: str) -> NDArray[Any]:
    """Converts a block of numbers from the dtype `stored` to `dtype`. Raises DataError for a number beyond float16's
    range.
    """
    if stored == dtype or stored not in _FLOATING:
        return block
    numbers = _as_float32(block, stored)
    if dtype == "float32":
        return numbers.view(np.uint32)
    if dtype == "bfloat16":
        words = numbers.view(np.uint32)
        # To the nearest, and of two equally near to the even one, like every processor.
        rounded = (words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype(np.uint16)
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    if bool(np.any(np.isinf(halves) & np.isfinite(numbers))):
        largest = float(np.abs(numbers[np.isfinite(numbers)]).max())
        raise DataError(f"it holds {largest:g}, and float16 ends at 65504", fix="convert to bfloat16, or to float32")
    return halves.view(np.uint16)


def _as_float32(block: NDArray[Any], stored: str) -> NDArray[np.float32]:
    """Returns a block of floating-point words as float32 numbers."""
    if stored == "bfloat16":
        return (block.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return block.view(f"f{ITEM_BYTES[stored]}").astype(np.float32, copy=False)
