"""`Manifest`: the tensors of an announced weight version, with a fast checksum for each."""

from __future__ import annotations

import msgspec
import xxhash


# array_like: a large model has hundreds of tensors, and every explorer reads a manifest for each version.
class TensorSum(msgspec.Struct, frozen=True, array_like=True):
    """A tensor's line in a manifest or layout: name, dtype, shape and digest."""

    name: str
    """Name of the tensor."""
    dtype: str
    """torch's name of the type of its numbers, such as `bfloat16`."""
    shape: tuple[int, ...]
    """Sizes along its dimensions."""
    xxh3: str
    """xxh3-128 over the tensor's bytes, in hex; in a `WeightsLayout`, the sums of the tensor's bits."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tensors of a version with their checksums: the content of manifest.json of exported weights, or of the head
    of a mapped file.
    """

    version: int
    """The weight version."""
    generation: int
    """The generation that produced the version."""
    checksum: str
    """Digest over all tensors; see `rftd.workers.weights.checksum`."""
    tensors: tuple[TensorSum, ...]
    """A line for each tensor."""
    offsets: tuple[int, ...] = ()
    """The offset of each tensor in a mapped file; tied tensors have equal offsets."""


class WeightsLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a version, as described by the publisher, for a receiver's allocation."""

    version: int
    """The weight version."""
    generation: int
    """The generation that produced the version."""
    checksum: str
    """Digest over all tensors."""
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
