"""Digests of weights: a text over all tensors, for comparing the weights of two processes.

There are five forms, each recognisable from the text (`form_of`), so that a digest recorded by a trainer on another
device is compared in equal form:

    xxh3      32 hex digits                     xxh3-128 over the lines of a manifest
    bits      `bits:` and 32 hex digits         over sums computed by torch on the tensors' device (`bit_sums`)
    tensors   `tensors:` and 64 hex digits      sha256 over the tensors' sha256
    sha256    64 hex digits                     sha256 in another way, for example by a third party's engine
    name      `name:` and 32 hex digits         of no readable bytes: weights at a service, by their training

The first two detect faults and different weights, the next two forgeries as well. The last distinguishes one execution
from another, and says nothing about the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import xxhash

from rftd.ops.errors import RankError
from rftd.workers.weights.manifest import TensorSum
from rftd.workers.weights.tensor_bytes import Weights

Form: TypeAlias = Literal["xxh3", "bits", "tensors", "sha256", "name"]
"""Form of a digest."""
NAME_PREFIX: Final = "name:"
"""Beginning of the digest of a name."""
_SHA256_DIGITS: Final = 64
"""Hex digits of a sha256."""
_BITS: Final = "bits:"
"""Beginning of the digest of sums of bits."""
_TENSORS: Final = "tensors:"
"""Beginning of the digest of tensors' sha256."""


class TensorDigest(NamedTuple):
    """A tensor's entry in a digest of digests: name, dtype, shape, and the digest's raw bytes."""

    name: str
    """Name of the tensor."""
    dtype: str
    """Dtype of the tensor."""
    shape: tuple[int, ...]
    """Shape of the tensor."""
    digest: bytes
    """Digest of the tensor's bytes."""


class _Digest(Protocol):
    """A digest under computation."""

    def update(self, data: bytes | memoryview, /) -> None: ...


def form_of(digest: str) -> Form:
    """Returns the form of a recorded digest, recognised by prefix and length."""
    if digest.startswith(_BITS):
        return "bits"
    if digest.startswith(_TENSORS):
        return "tensors"
    if digest.startswith(NAME_PREFIX):
        return "name"
    return "sha256" if len(digest) == _SHA256_DIGITS else "xxh3"


def trained_checksum(step: str, exported: str, *, exact: bool, version: int) -> str:
    """Returns the checksum of the step that made exported weights; empty if equal to the exported weights' checksum.

    Raises RankError if `exact` copies of a step's weights differ from the step's checksum: announced weights would
    belong to no step, and version 0 would pass for the base model with every later trainer.
    """
    if not exact or form_of(step) != form_of(exported):
        return step
    if step != exported:
        raise RankError(
            f"the weights of version {version} changed in the trainer's memory between their checksum and their copy: "
            f"{step} before, {exported} after",
            fix="nothing: the trainer begins anew from the newest checkpoint; if it comes again, test the memory",
        )
    return ""


def tensor_sums(weights: Weights) -> tuple[TensorSum, ...]:
    """Returns the lines of a manifest, a line per tensor, in name order."""
    # By object: tied tensors share an object, and a model's largest tensors (embeddings and output) are summed once.
    once: dict[int, str] = {}
    lines = []
    for name in sorted(weights):
        tensor = weights[name]
        if id(tensor) not in once:
            once[id(tensor)] = xxhash.xxh3_128(tensor.data).hexdigest()
        lines.append(TensorSum(name, tensor.dtype, tensor.shape, once[id(tensor)]))
    return tuple(lines)


def checksum_of(sums: Iterable[TensorSum]) -> str:
    """Returns the xxh3-128 (hex) over the lines of a manifest: the checksum of the weights described there."""
    return _xxh3(TensorDigest(line.name, line.dtype, line.shape, bytes.fromhex(line.xxh3)) for line in sums)


def checksum(weights: Weights) -> str:
    """Returns the xxh3-128 (hex) over name, dtype, shape and the bytes' xxh3-128 of every tensor, in name order."""
    return checksum_of(tensor_sums(weights))


def digest_of(form: Form, tensors: Iterable[TensorDigest]) -> str:
    """Combines the tensors' digests, all of one form, into a digest of that form; their order does not matter.

    Raises ValueError for the forms `name` and `sha256`, which are not made of tensors' digests.
    """
    # A digest of digests: the tensors can be digested by several threads, during their copy, and one at a time.
    lines = sorted(tensors)
    if form == "xxh3":
        return _xxh3(lines)
    if form == "bits":
        return _BITS + _xxh3(lines)
    if form == "tensors":
        whole = hashlib.sha256()
        for line in lines:
            _header(whole, line.name, line.dtype, line.shape)
            whole.update(line.digest)
        return _TENSORS + whole.hexdigest()
    raise ValueError(f"a checksum of the form {form} is not made of digests")


def _xxh3(lines: Iterable[TensorDigest]) -> str:
    """Returns the xxh3-128 (hex) over name, dtype, shape and digest of every tensor."""
    whole = xxhash.xxh3_128()
    for line in lines:
        _header(whole, line.name, line.dtype, line.shape)
        whole.update(line.digest)
    return whole.hexdigest()


def _header(digest: _Digest, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Adds name, dtype and shape, length-prefixed, so that no two lists of tensors produce the same bytes."""
    text = f"{dtype}:{','.join(map(str, shape))}".encode()
    encoded = name.encode()
    digest.update(len(encoded).to_bytes(4, "little") + encoded + len(text).to_bytes(4, "little") + text)
