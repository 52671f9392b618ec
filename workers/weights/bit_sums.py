"""Sums of tensors' bits, made where the tensors lie: nothing but 16 bytes of each tensor comes to the host.

A tensor is read as words w_i of 32 bits at most (signed, in C order). Each of two lanes has the sum over i of
`w_i * key(i) mod 2^64`, where `key(i)` is the product of two odd numbers that splitmix64 draws, one by the place of the
word in its row of 2^16 words and one by the row. That is multilinear hashing (Carter & Wegman 1979; Lemire & Kaser
2013, arXiv 1202.4961, section 3) in exact integers: devices and their orders of adding cannot give different sums.

What follows of it:

- A change of one word is always seen: an odd number has an inverse, so no difference below 2^32 gives zero.
- Other changes go unseen in a lane with a probability of some 2^-62 if any of the changed bits is a low one, and of
  some 2^-28 in the worst case, where nothing but the highest bit of 32-bit words changed. The lanes are independent.
- The sums of parts add up to the sum of the whole, mod 2^64, if each part is told where it begins (`first`). So the
  ranks of a sharded tensor, each with a part in C order, find it by one all-reduce of two integers.
- Keys are known to all, so it tells faults and other weights, as xxh3 does, and no forgery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rftd.workers.weights.checksum import TensorDigest
from rftd.workers.weights.torch_bytes import dtype_name

LANES: Final = 2
ROW_WORDS: Final = 1 << 16
_ROWS_AT_ONCE: Final = 128
"""Rows that a device multiplies at once: the products take 128 MB there, whatever the tensor's size."""
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""How numbers are read, by their bytes; larger ones are two words."""


class BitSums:
    """Makes the sums on one device, where it keeps its keys: a megabyte, and eight bytes for every row."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # On a CPU the products of one row stay in its cache.
        self._rows_at_once = 1 if device.type == "cpu" else _ROWS_AT_ONCE
        self._columns = _keys(0, ROW_WORDS, device)  # [L, W]
        self._rows = _keys(LANES, 1, device)  # [L, rows]

    def digests(self, tensors: Mapping[str, Tensor]) -> list[TensorDigest]:
        """A digest of 16 bytes for each tensor; they are waited for once, together. Tied ones are summed once."""
        keys = {name: (each.data_ptr(), tuple(each.shape), each.stride()) for name, each in tensors.items()}
        # Empty tensors all have the address 0; their sums are zero.
        distinct = {keys[name]: each for name, each in tensors.items()}
        sums = dict(zip(distinct, self._sums(list(distinct.values())), strict=True))
        found = [(name, tensor, sums[keys[name]]) for name, tensor in tensors.items()]
        if not found:
            return []
        values: NDArray[np.int64] = torch.stack([each for _, _, each in found]).cpu().numpy()  # [tensors, L]
        return [
            TensorDigest(name, dtype_name(tensor), tuple(tensor.shape), value.astype("<i8").tobytes())
            for (name, tensor, _), value in zip(found, values, strict=True)
        ]

    def _sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums of whole tensors; short ones of one length together: a model has hundreds of norms and biases."""
        found: dict[int, Tensor] = {}
        short: dict[tuple[int, torch.dtype], list[tuple[int, Tensor]]] = {}
        for place, tensor in enumerate(tensors):
            words = _words(tensor)
            if 0 < len(words) < ROW_WORDS:
                short.setdefault((len(words), words.dtype), []).append((place, words))
            else:
                found[place] = self.lanes(tensor)
        for (length, _), each in short.items():
            most = max(1, self._rows_at_once * ROW_WORDS // length)
            for begin in range(0, len(each), most):
                some = each[begin : begin + most]
                rows = torch.stack([words for _, words in some])  # [T, W]
                sums = (rows * self._columns[:, None, :length]).sum(-1) * self._keys_of_rows(0, 1)  # [L, T]
                found |= zip((place for place, _ in some), sums.T, strict=True)
        return [found[place] for place in range(len(tensors))]

    def lanes(self, tensor: Tensor, *, first: int = 0) -> Tensor:
        """The sums of the tensor's words, of which the first is word `first` of the whole  # [L], int64"""
        words = _words(tensor)
        total = torch.zeros(LANES, dtype=torch.int64, device=self._device)
        begin = 0
        while begin < len(words):
            row, place = divmod(first + begin, ROW_WORDS)
            rows = min((len(words) - begin) // ROW_WORDS, self._rows_at_once) if not place else 0
            # Whole rows together; what begins or ends within one is summed by itself.
            size = rows * ROW_WORDS or min(ROW_WORDS - place, len(words) - begin)
            part = words[begin : begin + size].view(max(rows, 1), -1)  # [rows, W]
            columns = self._columns[:, None, place : place + part.shape[1]]  # [L, 1, W]
            # torch multiplies as the wider of the two, int64, which is exact mod 2^64.
            sums = (part * columns).sum(-1)  # [L, rows]
            total += (sums * self._keys_of_rows(row, len(part))).sum(-1)
            begin += size
        return total

    def _keys_of_rows(self, first: int, count: int) -> Tensor:
        if first + count > self._rows.shape[1]:
            # Twice as many as are needed: few tensors are larger than those before them by so much.
            self._rows = _keys(LANES, 2 * (first + count), self._device)
        return self._rows[:, first : first + count]


def _words(tensor: Tensor) -> Tensor:
    """The tensor in C order, read as words  # [N]"""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(_WORDS[flat.element_size()])


def _keys(stream: int, count: int, device: torch.device) -> Tensor:
    """Odd numbers for each lane, by splitmix64 (Steele et al. 2014, fig. 17)  # [L, count], int64"""
    lanes = []
    for lane in range(LANES):
        # Streams begin 2^40 numbers apart, further than any model has rows.
        begin = (stream + lane) << 40
        state = (np.arange(begin + 1, begin + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        lanes.append((state ^ (state >> np.uint64(31))) | np.uint64(1))
    return torch.from_numpy(np.stack(lanes).view(np.int64)).to(device)
