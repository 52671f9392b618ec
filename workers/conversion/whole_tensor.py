"""A tensor whose parts lie in several files, read in blocks of a few megabytes, in C order.

Nothing here knows what wrote the parts. No more than a block is in memory at once, however large tensor and parts are.
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
"""Of a block: it stays in the processor's cache while it is looked at and written."""

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The offset and the size of a part, along each dimension."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A box of a tensor, and the place where its numbers are."""

    offset: tuple[int, ...]
    stored: StoredTensor


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A tensor to be written: boxes of one whose parts are stored, one after the other."""

    name: str
    layout: TensorLayout
    parts: tuple[TensorPart, ...]
    boxes: tuple[Box, ...]
    """Of the tensor that is stored; their numbers in C order, in a row, are those of this one."""
    dtype: str | None = None
    """The dtype that its numbers get when they are written; None: the one that they are stored in."""

    @property
    def written(self) -> TensorLayout:
        """The layout as it is written."""
        return layout_in(self.layout, self.dtype)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Its numbers as flat blocks of words of the dtype's size; each block is good until the next one is asked for.

        Raises DataError if a file is cut off.
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
        """The files that its numbers lie in."""
        return list(dict.fromkeys(part.stored.path for part in self.parts))

    def _fill(self, box: NDArray[Any], offset: tuple[int, ...]) -> None:
        for part in self.parts:
            extent = part.stored.shape
            begin = [max(low, at) for low, at in zip(offset, part.offset, strict=True)]
            end = [
                min(low + wide, at + reach)
                for low, wide, at, reach in zip(offset, box.shape, part.offset, extent, strict=True)
            ]
            if any(low >= high for low, high in zip(begin, end, strict=True)):
                continue
            inner = tuple(slice(low - at, high - at) for low, high, at in zip(begin, end, offset, strict=True))
            there = tuple(low - at for low, at in zip(begin, part.offset, strict=True))
            part.stored.read_into(box[inner] if inner else box, there)


def whole(name: str, shape: tuple[int, ...], parts: Sequence[TensorPart]) -> WholeTensor:
    """The tensor that the parts make up. Raises DataError, naming a file, unless they are each number of it once."""
    dtype = parts[0].stored.dtype
    for part in parts:
        stored = part.stored
        inside = len(shape) == len(stored.shape) == len(part.offset) and all(
            at >= 0 and at + extent <= limit for at, extent, limit in zip(part.offset, stored.shape, shape, strict=True)
        )
        if stored.dtype != dtype or not inside:
            raise DataError(
                f"{name!r} is {stored.dtype} {stored.shape} at {part.offset} here, and {dtype} {shape} in "
                f"{parts[0].stored.path.name}: the files are of different models",
                where=str(stored.path),
                fix=FIX,
            )
    for one, other in _near(parts):
        if _overlap(one, other):
            raise DataError(
                f"the part of {name!r} at {one.offset} lies in {other.stored.path.name} as well",
                where=str(one.stored.path),
                fix=FIX,
            )
    found = sum(math.prod(part.stored.shape) for part in parts)
    if found != math.prod(shape):
        raise DataError(
            f"the parts of {name!r} have {found} of {math.prod(shape)} numbers",
            where=str(parts[0].stored.path),
            fix=FIX,
        )
    return WholeTensor(name, TensorLayout(dtype, shape), tuple(parts), (((0,) * len(shape), shape),))


def _near(parts: Sequence[TensorPart]) -> Iterator[tuple[TensorPart, TensorPart]]:
    """The pairs of parts that may overlap: neighbours where a tensor is cut along one dimension, as most are."""
    solid = [part for part in parts if math.prod(part.stored.shape)]
    cut = [dim for dim in range(len(parts[0].offset)) if len({part.offset[dim] for part in solid}) > 1]
    if len(cut) == 1:
        return pairwise(sorted(solid, key=lambda part: part.offset[cut[0]]))
    return combinations(solid, 2)


def _overlap(one: TensorPart, other: TensorPart) -> bool:
    return all(
        max(first, second) < min(first + extent, second + reach)
        for first, extent, second, reach in zip(
            one.offset, one.stored.shape, other.offset, other.stored.shape, strict=True
        )
    )


DTYPES: Final = ("bfloat16", "float16", "float32")
"""The types that a converted model may have."""
_FLOATING: Final = (*DTYPES, "float64")


def layout_in(layout: TensorLayout, dtype: str | None) -> TensorLayout:
    """The layout of a tensor whose numbers become `dtype`; None, and tensors of whole numbers, stay as they are."""
    return layout if dtype is None or layout.dtype not in _FLOATING else layout._replace(dtype=dtype)


def cast(block: NDArray[Any], stored: str, dtype: str) -> NDArray[Any]:
    """Words of the type `stored` as words of `dtype`. Raises DataError for a number that float16 cannot hold."""
    if stored == dtype or stored not in _FLOATING:
        return block
    numbers = _as_float32(block, stored)
    if dtype == "float32":
        return numbers.view(np.uint32)
    if dtype == "bfloat16":
        words = numbers.view(np.uint32)
        # To the nearest, and of two that are as near to the even one, as every processor does.
        rounded = (words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype(np.uint16)
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    if bool(np.any(np.isinf(halves) & np.isfinite(numbers))):
        largest = float(np.abs(numbers[np.isfinite(numbers)]).max())
        raise DataError(f"it holds {largest:g}, and float16 ends at 65504", fix="convert to bfloat16, or to float32")
    return halves.view(np.uint16)


def _as_float32(block: NDArray[Any], stored: str) -> NDArray[np.float32]:
    if stored == "bfloat16":
        return (block.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return block.view(f"f{ITEM_BYTES[stored]}").astype(np.float32, copy=False)
