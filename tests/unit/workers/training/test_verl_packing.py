"""Batches as verl's ranks compute them: whole texts, within the budget, as many micro-batches as ranks can share."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from synthetic.models.algorithm_batches import make_samples

from rftd.workers.engines.verl.packing import Budget, PackedTexts, pack
from rftd.workers.learning.losses.aggregation import Aggregation

SAMPLES = make_samples("grpo", groups=4, members=6)


def packed(budget: Budget, algorithm: str = "grpo") -> list[PackedTexts]:
    samples = make_samples(algorithm, groups=4, members=6)
    return pack(samples, range(len(samples)), Aggregation("token-mean"), budget)


@pytest.mark.parametrize("shares", [1, 2, 3])
def test_each_token_is_predicted_once_from_the_place_before_it(shares: int) -> None:
    found = packed(Budget(tokens=48, padded=True, shares=shares))
    assert len(found) % shares == 0
    assert sorted(int(member) for micro in found for member in micro.members) == list(range(len(SAMPLES)))
    for micro in found:
        assert int(micro.lengths.max()) * len(micro.lengths) <= 48
        np.testing.assert_array_equal(micro.ids[micro.source + 1], micro.targets)
    assert sum(float(micro.weights.mean.sum()) for micro in found) == pytest.approx(1.0)


def test_without_padding_and_by_texts() -> None:
    assert all(int(micro.lengths.sum()) <= 48 for micro in packed(Budget(tokens=48, padded=False)))
    assert all(len(micro.lengths) <= 3 for micro in packed(Budget(tokens=1, padded=True, texts=3)))


def test_the_two_of_a_preference_stay_together() -> None:
    for micro in packed(Budget(tokens=1, padded=True, shares=2), "dpo"):
        assert micro.pairs is not None
        assert {len(list(group)) for _, group in groupby(sorted(micro.pairs))} == {2}


def test_a_text_of_several_temperatures_says_so_for_each_place() -> None:
    samples = make_samples("grpo", groups=1, members=2)
    for number, kinds in enumerate(([0.5], [0.5, 2.0])):
        length = len(samples[number].loss_mask)
        temperatures = np.resize(np.array(kinds), length)
        samples[number] = type(samples[number])(
            **{name: getattr(samples[number], name) for name in samples[number].__struct_fields__}
            | {"temperatures": temperatures, "loss_mask": np.ones(length, np.uint8)}
        )
    (micro,) = pack(samples, range(2), Aggregation("token-mean"), Budget(tokens=999, padded=True))
    assert micro.inverse_temperatures is not None
    scale = np.repeat(micro.temperatures, micro.lengths)[micro.source]
    np.testing.assert_allclose(micro.inverse_temperatures[micro.source] / scale, micro.inverse_temperature)
