"""What an announced weight version consists of, with a fast checksum for each tensor."""

from __future__ import annotations

import msgspec
import xxhash


class TensorSum(msgspec.Struct, frozen=True, array_like=True):
    """One tensor: its name, dtype, shape and xxh3-128."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    xxh3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """manifest.json beside exported weights, or the head of a mapped file."""

    version: int
    generation: int
    checksum: str
    tensors: tuple[TensorSum, ...]
    offsets: tuple[int, ...] = ()
    """Where each tensor begins in a mapped file; two that are tied begin at the same place."""


def manifest_id(encoded: bytes) -> str:
    """xxh3-128 (hex) of a manifest's bytes: the name by which explorers echo what they loaded."""
    digest: str = xxhash.xxh3_128(encoded).hexdigest()
    return digest
