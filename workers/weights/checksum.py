"""Checksums of weights: one number over every tensor, so that two processes can compare what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
import xxhash

from rftd.workers.weights.manifest import TensorSum


class _Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...


def tensor_sums(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorSum, ...]:
    """One line of a manifest for each tensor, in name order."""
    return tuple(
        TensorSum(name, dtype_name(tensors[name]), tuple(tensors[name].shape), _xxh3(tensors[name]))
        for name in sorted(tensors)
    )


def checksum_of(sums: Iterable[TensorSum]) -> str:
    """xxh3-128 (hex) over the lines of a manifest: the checksum of the weights that they describe."""
    digest = xxhash.xxh3_128()
    for line in sums:
        _header(digest, line.name, line.dtype, line.shape)
        digest.update(bytes.fromhex(line.xxh3))
    return digest.hexdigest()


def checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """xxh3-128 (hex) over name, dtype, shape and bytes of every tensor, in name order."""
    return checksum_of(tensor_sums(tensors))


def sha256_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """The same by sha256: slower, for checkpoints and for the deterministic mode."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        _header(digest, name, dtype_name(tensor), tuple(tensor.shape))
        digest.update(memory(tensor))
    return digest.hexdigest()


def dtype_name(tensor: torch.Tensor) -> str:
    """`float32`, `bfloat16`, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def memory(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes in C order, without a copy where it already lies so on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _xxh3(tensor: torch.Tensor) -> str:
    digest: str = xxhash.xxh3_128(memory(tensor)).hexdigest()
    return digest


def _header(digest: _Digest, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Length-prefixed, so that no two lists of tensors make the same bytes."""
    text = f"{dtype}:{','.join(map(str, shape))}".encode()
    encoded = name.encode()
    digest.update(len(encoded).to_bytes(4, "little") + encoded + len(text).to_bytes(4, "little") + text)
