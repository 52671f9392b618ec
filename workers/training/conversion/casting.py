"""Numbers of one floating type as those of another, rounded to the nearest, without a library of tensors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import DataError
from rftd.workers.weights.tensor_bytes import ITEM_BYTES, TensorLayout

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
