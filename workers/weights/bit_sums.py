"""Sums of tensors' bits, computed on the device: only 16 bytes of each tensor are copied to the host.

A tensor is read as words w_i of 32 bits at most (signed, in C order). Each of two lanes has the sum over i of `w_i *
key(i) mod 2^64`, where `key(i)` is the product of two odd numbers drawn by splitmix64, one by the index of the word in
its row of 2^16 words and one by the row. The method is multilinear hashing (Carter & Wegman 1979; Lemire & Kaser 2013,
arXiv 1202.4961, section 3) in exact integers: devices and their orders of adding cannot yield different sums.

Consequences:

- A change of one word is always detected: an odd number has an inverse, so no difference below 2^32 yields zero.
- Other changes are missed in a lane with a probability of some 2^-62 if any of the changed bits is a low one, and of
  some 2^-28 in the worst case, with changes only in the highest bit of 32-bit words. The lanes are independent.
- The sums of parts add up to the sum of the whole, mod 2^64, if the first word of each part is known (`first`). So the
  ranks of a sharded tensor, each with a part in C order, compute the sum by an all-reduce of two integers.
- The keys are public, so the sums detect faults and different weights, as xxh3 does, but no forgery.
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
"""Number of independent sums."""
ROW_WORDS: Final = 1 << 16
"""Words of a row."""
_ROWS_PER_PRODUCT: Final = 128
"""Rows multiplied at once on a device: the products take 128 MB there, whatever the tensor's size."""
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Word type by the size of a number in bytes; larger numbers are two words."""


class BitSums:
    """Computes digests of tensors on their device by keyed sums of bits; the keys are cached: a megabyte, and sixteen
    bytes for every row of words.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepares keys on `device`."""
        self._device = device
        # On a CPU the products of one row stay in its cache.
        self._rows_at_once = 1 if device.type == "cpu" else _ROWS_PER_PRODUCT
        self._columns = _keys(0, ROW_WORDS, device)  # [L, W]
        self._rows = _keys(LANES, 1, device)  # [L, rows]

    def digests(self, tensors: Mapping[str, Tensor]) -> list[TensorDigest]:
        """Returns a digest of 16 bytes for each tensor, synchronising once for all. Tied tensors are summed once."""
        keys = {name: (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for name, tensor in tensors.items()}
        # Empty tensors all have the address 0; the sums are zero.
        distinct = {keys[name]: tensor for name, tensor in tensors.items()}
        sums = dict(zip(distinct, self._sums(list(distinct.values())), strict=True))
        summed = [(name, tensor, sums[keys[name]]) for name, tensor in tensors.items()]
        if not summed:
            return []
        digest_rows: NDArray[np.int64] = (
            torch.stack([lane_sums for _, _, lane_sums in summed]).cpu().numpy()
        )  # [tensors, L]
        return [
            TensorDigest(name, dtype_name(tensor), tuple(tensor.shape), digest_row.astype("<i8").tobytes())
            for (name, tensor, _), digest_row in zip(summed, digest_rows, strict=True)
        ]

    def _sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns the sums of whole tensors; short tensors of equal length together: a model has hundreds of norms and
        biases.
        """
        lane_sums: dict[int, Tensor] = {}
        short: dict[tuple[int, torch.dtype], list[tuple[int, Tensor]]] = {}
        for index, tensor in enumerate(tensors):
            words = _words(tensor)
            if 0 < len(words) < ROW_WORDS:
                short.setdefault((len(words), words.dtype), []).append((index, words))
            else:
                lane_sums[index] = self.lanes(tensor)
        for (length, _), same_length in short.items():
            most = max(1, self._rows_at_once * ROW_WORDS // length)
            for begin in range(0, len(same_length), most):
                batch = same_length[begin : begin + most]
                rows = torch.stack([words for _, words in batch])  # [T, W]
                sums = (rows * self._columns[:, None, :length]).sum(-1) * self._keys_of_rows(0, 1)  # [L, T]
                lane_sums |= zip((index for index, _ in batch), sums.T, strict=True)
        return [lane_sums[index] for index in range(len(tensors))]

    def lanes(self, tensor: Tensor, *, first: int = 0) -> Tensor:
        """Returns the keyed sums of a tensor's words; `first` is the number of its first word, if it is a part of a
        larger tensor  # [L], int64
        """
        words = _words(tensor)
        total = torch.zeros(LANES, dtype=torch.int64, device=self._device)
        begin = 0
        while begin < len(words):
            row, column = divmod(first + begin, ROW_WORDS)
            rows = min((len(words) - begin) // ROW_WORDS, self._rows_at_once) if not column else 0
            # Whole rows together; a row that begins or ends in the middle is summed separately.
            size = rows * ROW_WORDS or min(ROW_WORDS - column, len(words) - begin)
            block = words[begin : begin + size].view(max(rows, 1), -1)  # [rows, W]
            columns = self._columns[:, None, column : column + block.shape[1]]  # [L, 1, W]
            # torch multiplies in the wider type of the two, int64, and is exact mod 2^64.
            sums = (block * columns).sum(-1)  # [L, rows]
            total += (sums * self._keys_of_rows(row, len(block))).sum(-1)
            begin += size
        return total

    def _keys_of_rows(self, first: int, count: int) -> Tensor:
        """Returns the keys of some rows, computing more if needed."""
        if first + count > self._rows.shape[1]:
            # Twice the needed number: few tensors exceed earlier tensors by so much.
            self._rows = _keys(LANES, 2 * (first + count), self._device)
        return self._rows[:, first : first + count]


def _words(tensor: Tensor) -> Tensor:
    """Returns the tensor in C order, read as words  # [N]"""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(_WORDS[flat.element_size()])


def _keys(stream: int, count: int, device: torch.device) -> Tensor:
    """Returns odd numbers for each lane, by splitmix64 (Steele et al. 2014, fig. 17); lane l draws from stream `stream`
    + l  # [L, count], int64
    """
    lanes = []
    for lane in range(LANES):
        # Streams begin 2^40 numbers apart, further than any model has rows.
        begin = (stream + lane) << 40
        state = (np.arange(begin + 1, begin + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        lanes.append((state ^ (state >> np.uint64(31))) | np.uint64(1))
    return torch.from_numpy(np.stack(lanes).view(np.int64)).to(device)
