"""manifest.json: what an announced weight version consists of, with a fast checksum for each tensor."""

from __future__ import annotations

import msgspec


class TensorSum(msgspec.Struct, frozen=True, array_like=True):
    """One tensor: its name, dtype, shape and xxh3-128."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    xxh3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json beside exported weights."""

    version: int
    generation: int
    checksum: str
    tensors: tuple[TensorSum, ...]
