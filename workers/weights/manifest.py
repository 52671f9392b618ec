"""`Manifest`: the tensors of an announced weight version, with a fast checksum for each."""

from __future__ import annotations

import msgspec
import xxhash


# array_like: a large model has hundreds of tensors, and every explorer reads a manifest for each version.
class TensorSum(msgspec.Struct, frozen=True, array_like=True):
    """A tensor's line in the manifest: name, dtype, shape and xxh3-128 (hex)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    xxh3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tensors of a version with their checksums: the content of manifest.json of exported weights, or of the head
    of a mapped file.
    """

    version: int
    generation: int
    checksum: str
    tensors: tuple[TensorSum, ...]
    offsets: tuple[int, ...] = ()
    """The offset of each tensor in a mapped file; tied tensors have equal offsets."""


class WeightsLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a version, as described by the publisher, for a receiver's allocation."""

    version: int
    generation: int
    checksum: str
    device: str
    """The kind of device that holds them: `cuda` or `cpu`."""
    tensors: tuple[TensorSum, ...]
    """In name order; the sums are of their bits."""
    shares: tuple[int, ...]
    """Index of the first tensor with the same memory; the tensor's own index, unless tied."""


def manifest_id(encoded: bytes) -> str:
    """Returns the id of a manifest, the xxh3-128 (hex) of its encoded bytes: an announcement's `manifest`."""
    digest: str = xxhash.xxh3_128(encoded).hexdigest()
    return digest
