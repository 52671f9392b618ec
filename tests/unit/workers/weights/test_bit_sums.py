"""Sums of bits: exact whatever the device and the order, composed of parts, and different for different weights."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from rftd.workers.weights.bit_sums import LANES, ROW_WORDS, BitSums
from rftd.workers.weights.checksum import form_of
from rftd.workers.weights.tensor_digests import TensorDigests

CPU = torch.device("cpu")


def drawn(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)


def splitmix(number: int) -> int:
    """The sum's keys, in numbers without a width."""
    mask = (1 << 64) - 1
    state = (number + 1) * 0x9E3779B97F4A7C15 & mask
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
    state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
    return (state ^ state >> 31) | 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.uint8], ids=str)
def test_the_sum_is_what_its_formula_says(dtype: torch.dtype) -> None:
    tensor = drawn(ROW_WORDS + 1000, dtype) if dtype != torch.bool else drawn(1000) > 0
    kind = {1: "<u1", 2: "<i2", 4: "<i4", 8: "<i4"}[tensor.element_size()]
    words = np.frombuffer(bytes(tensor.view(torch.uint8).numpy()), kind).tolist()
    lanes = []
    for lane in range(LANES):
        columns = [splitmix((lane << 40) + place) for place in range(ROW_WORDS)]
        total = 0
        for number, word in enumerate(words):
            row, place = divmod(number, ROW_WORDS)
            total += word * columns[place] * splitmix(((LANES + lane) << 40) + row)
        lanes.append(total % 2**64)
    found = BitSums(CPU).lanes(tensor)
    assert [each % 2**64 for each in found.tolist()] == lanes


@pytest.mark.parametrize(
    "cuts", [(1,), (ROW_WORDS,), (7, ROW_WORDS + 3, 5 * ROW_WORDS), (66 * ROW_WORDS - 1,)], ids=str
)
def test_sums_of_parts_add_up_to_that_of_the_whole(cuts: tuple[int, ...]) -> None:
    """Ranks that hold a part each add their sums in whatever order."""
    whole = drawn(66 * ROW_WORDS + 11)
    sums = BitSums(CPU)
    bounds = [0, *cuts, len(whole)]
    parts = [sums.lanes(whole[begin:end], first=begin) for begin, end in pairwise(bounds)]
    assert torch.equal(torch.stack(parts[::-1]).sum(0), sums.lanes(whole))


def test_short_tensors_that_are_summed_together_have_the_sums_of_each() -> None:
    sizes = (1, 7, ROW_WORDS - 1, ROW_WORDS, ROW_WORDS + 1, 7, 30_000, 30_000, 30_000, 7)
    tensors = {f"{place}": drawn(size).roll(place) for place, size in enumerate(sizes)}
    tensors |= {"half": drawn(7, torch.bfloat16), "transposed": drawn(20).reshape(4, 5).t(), "no": torch.zeros(0)}
    sums = BitSums(CPU)
    for digest in sums.digests(tensors):
        alone = sums.lanes(tensors[digest.name]).numpy().astype("<i8").tobytes()
        assert digest.digest == alone, digest.name


def test_every_change_is_seen() -> None:
    base = drawn(3 * ROW_WORDS)
    sums = BitSums(CPU)
    seen = {tuple(sums.lanes(base).tolist())}

    def changed(tensor: torch.Tensor) -> None:
        found = tuple(sums.lanes(tensor).tolist())
        assert all(found[lane] not in {each[lane] for each in seen} for lane in range(LANES))
        seen.add(found)

    for place in (0, 1, ROW_WORDS - 1, ROW_WORDS, len(base) - 1):
        for bit in (0, 15, 31):
            words = base.clone().view(torch.int32)
            words[place] ^= 1 << bit if bit < 31 else -(1 << 31)
            changed(words)
    changed(base.flip(0))
    changed(base.roll(1))
    changed(base.roll(ROW_WORDS))
    changed(-base)
    signs = base.clone()
    signs[[3, ROW_WORDS + 3]] *= -1
    changed(signs)


def test_names_dtypes_shapes_and_ties_count_and_order_and_layout_do_not() -> None:
    digests = TensorDigests(threads=1)
    base = {"b": drawn(20).reshape(4, 5), "a": drawn(3, torch.bfloat16), "one": torch.tensor(2.0), "no": torch.zeros(0)}
    whole = digests.of("bits", base)
    assert form_of(whole) == "bits"
    strided = base["b"].t().contiguous().t()
    assert not strided.is_contiguous()
    assert digests.of("bits", dict(reversed(base.items())) | {"b": strided}) == whole
    others = [
        {**base, "b": base["b"].reshape(5, 4)},
        {**base, "b": base["b"].view(torch.int32)},
        {**base, "b": base["b"].t()},
        {("c" if name == "b" else name): tensor for name, tensor in base.items()},
        {name: tensor for name, tensor in base.items() if name != "no"},
    ]
    assert len({whole, *(digests.of("bits", each) for each in others)}) == len(others) + 1
    tied = {"one": base["b"], "two": base["b"]}
    assert digests.of("bits", tied) == digests.of("bits", {"one": base["b"], "two": base["b"].clone()})
    assert digests.of("bits", {}) != whole
