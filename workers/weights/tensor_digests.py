"""`TensorDigests`: digests of torch's tensors in any form, on their device or one tensor at a time on the host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch
import xxhash

from rftd.workers.weights.bit_sums import BitSums
from rftd.workers.weights.checksum import Form, TensorDigest, digest_of
from rftd.workers.weights.torch_bytes import dtype_name, memory

_THREADED_BYTES: Final = 1 << 24
"""Below this size, starting threads takes longer than digesting."""


class TensorDigests:
    """Computes digests for an engine; tensors stay on their devices."""

    def __init__(self, *, threads: int) -> None:
        """Creates the computation, with up to `threads` threads for digests on the host."""
        self._threads = threads
        self._sums: dict[torch.device, BitSums] = {}

    def of(self, form: Form, tensors: Mapping[str, torch.Tensor]) -> str:
        """Returns the digest of all tensors, by name; for the forms `name` and `sha256`, which cannot be computed from
        tensors, the `xxh3`, different from any recorded digest of these forms.

        `bits` copies 16 bytes of each tensor from the device; `xxh3` and `tensors` have as many tensors on the host at
        once as there are threads.
        """
        if form in ("name", "sha256"):
            # The recorded digest has no numbers, or was computed in another way: different from any form of the given
            # tensors.
            return digest_of("xxh3", self.each("xxh3", tensors))
        return digest_of(form, self.each(form, tensors))

    def each(self, form: Form, tensors: Mapping[str, torch.Tensor]) -> list[TensorDigest]:
        """Returns the digests of some tensors, by name, as input of `digest_of`."""
        if form == "xxh3":
            return self._hashed(tensors, lambda data: xxhash.xxh3_128(data).digest())
        if form == "tensors":
            return self._hashed(tensors, lambda data: hashlib.sha256(data).digest())
        digests: list[TensorDigest] = []
        # An engine may have tensors on several devices; at rest on the host.
        for device in {tensor.device for tensor in tensors.values()}:
            on_device = {name: tensor for name, tensor in tensors.items() if tensor.device == device}
            digests += self._sums.setdefault(device, BitSums(device)).digests(on_device)
        return digests

    def _hashed(self, tensors: Mapping[str, torch.Tensor], digest: Callable[[memoryview], bytes]) -> list[TensorDigest]:
        """Returns the digest of each tensor's bytes on the host, one tensor at a time or, if there are many bytes, on
        threads.
        """

        def line(name: str) -> TensorDigest:
            tensor = tensors[name]
            return TensorDigest(name, dtype_name(tensor), tuple(tensor.shape), digest(memory(tensor)))

        if self._threads <= 1 or sum(tensor.nbytes for tensor in tensors.values()) < _THREADED_BYTES:
            return [line(name) for name in tensors]
        with ThreadPoolExecutor(self._threads, thread_name_prefix="digest") as pool:
            return list(pool.map(line, tensors))
