"""Digests of named tensors: xxh3-128 with each announcement, sha256 in deterministic mode and at checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import torch
import xxhash

Tensors = Mapping[str, torch.Tensor]


class _Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def checksum(tensors: Tensors) -> str:
    """xxh3-128 (hex) over name, dtype, shape and bytes of every tensor, in name order."""
    return _digest(tensors, xxhash.xxh3_128())


def sha256_of(tensors: Tensors) -> str:
    """The same by sha256."""
    return _digest(tensors, hashlib.sha256())


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes, C-contiguous, without a copy where it already lies so on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def dtype_name(tensor: torch.Tensor) -> str:
    """`float32`, `bfloat16`, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def _digest(tensors: Tensors, digest: _Digest) -> str:
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\0{dtype_name(tensor)}\0{tuple(tensor.shape)}\0".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()
