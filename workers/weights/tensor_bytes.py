"""`TensorBytes`: one tensor as a weight channel carries it. No library of tensors is needed to write or read one."""

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
    """A tensor without its numbers."""

    dtype: str
    shape: tuple[int, ...]


# eq=False: tensors are told apart by identity, which is how tied ones are known; comparing bytes would take seconds.
@dataclass(frozen=True, slots=True, eq=False)
class TensorBytes:
    """A tensor's bytes in C order. Two names of one tensor (tied weights) hold one object, and travel once."""

    dtype: str
    """`float32`, `bfloat16`, ..."""
    shape: tuple[int, ...]
    data: memoryview
    """The bytes, flat, one item each."""


Weights = Mapping[str, TensorBytes]


def size_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """The size of such a tensor in bytes. Raises KeyError for a dtype that no channel carries."""
    return ITEM_BYTES[dtype] * math.prod(shape)


def each_once(weights: Weights) -> dict[str, TensorBytes]:
    """The tensors, each under one name: of tied names the last in order, which transformers expects to find."""
    kept = {id(weights[name]): (name, weights[name]) for name in sorted(weights)}
    return dict(kept.values())
