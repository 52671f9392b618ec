"""Checksums of weights: one number over every tensor, so that two processes can compare what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Protocol

import xxhash

from rftd.workers.weights.manifest import TensorSum
from rftd.workers.weights.tensor_bytes import Weights


class _Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...


def tensor_sums(weights: Weights) -> tuple[TensorSum, ...]:
    """The lines of a manifest, one for each tensor, in name order."""
    # By object: tied tensors are one object, and the largest of a model (embeddings and output) are summed once.
    once: dict[int, str] = {}
    lines = []
    for name in sorted(weights):
        each = weights[name]
        if id(each) not in once:
            once[id(each)] = xxhash.xxh3_128(each.data).hexdigest()
        lines.append(TensorSum(name, each.dtype, each.shape, once[id(each)]))
    return tuple(lines)


def checksum_of(sums: Iterable[TensorSum]) -> str:
    """The xxh3-128 (hex) over the lines of a manifest: the checksum of the weights that they describe."""
    digest = xxhash.xxh3_128()
    # A sum of sums: the tensors can be summed by several threads, or while they are copied.
    for line in sums:
        _header(digest, line.name, line.dtype, line.shape)
        digest.update(bytes.fromhex(line.xxh3))
    return digest.hexdigest()


def checksum(weights: Weights) -> str:
    """The xxh3-128 (hex) over name, dtype, shape and bytes of every tensor, in name order."""
    return checksum_of(tensor_sums(weights))


def sha256_of(weights: Weights) -> str:
    """The sha256 (hex) over name, dtype, shape and bytes of every tensor: slower, for checkpoints and deterministic
    runs."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        each = weights[name]
        _header(digest, name, each.dtype, each.shape)
        digest.update(each.data)
    return digest.hexdigest()


def _header(digest: _Digest, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Adds name, dtype and shape, length-prefixed, so that no two lists of tensors make the same bytes."""
    text = f"{dtype}:{','.join(map(str, shape))}".encode()
    encoded = name.encode()
    digest.update(len(encoded).to_bytes(4, "little") + encoded + len(text).to_bytes(4, "little") + text)
