"""`TensorBytes`: a tensor in a weight channel, written and read without a tensor library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

ITEM_BYTES: Final[Mapping[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
}
"""The bytes of one number by dtype, under torch's names."""


class TensorLayout(NamedTuple):
    """A tensor's dtype and shape, without numbers, as read from a header."""

    dtype: str
    """torch's name of the type of its numbers."""
    shape: tuple[int, ...]
    """Sizes along the dimensions."""


# eq=False: tensors are compared by identity, which marks tied ones; comparing bytes would take seconds.
@dataclass(frozen=True, slots=True, eq=False)
class TensorBytes:
    """A tensor's bytes in C order. Two names of a tensor (tied weights) share an object, transferred once."""

    dtype: str
    """`float32`, `bfloat16`, ..."""
    shape: tuple[int, ...]
    """Sizes along the dimensions."""
    data: memoryview
    """The bytes, flat, one item each."""


Weights = Mapping[str, TensorBytes]
"""The tensors of a weight version, by name."""


def size_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Returns the size of a tensor in bytes. Raises KeyError for a dtype unsupported by every channel."""
    return ITEM_BYTES[dtype] * math.prod(shape)


def each_once(weights: Weights) -> dict[str, TensorBytes]:
    """Returns the tensors, each under one name: of tied names the last in order, as expected by transformers."""
    by_identity = {id(weights[name]): (name, weights[name]) for name in sorted(weights)}
    return dict(by_identity.values())
