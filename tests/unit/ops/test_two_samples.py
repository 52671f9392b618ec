"""The two-sample test, against values from tables and samples whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from rftd.ops.two_samples import kolmogorov, ks_of_counts, ks_test


@pytest.mark.parametrize(
    ("x", "p"),
    [(0.0, 1.0), (0.5, 0.96394524), (0.82757, 0.5), (1.22385, 0.1), (1.35810, 0.05), (1.62762, 0.01), (1.94947, 0.001)],
)
def test_the_series_gives_the_values_of_the_tables(x: float, p: float) -> None:
    assert kolmogorov(x) == pytest.approx(p, rel=2e-4)


def test_the_statistic_is_the_largest_gap() -> None:
    assert ks_test([1, 2, 3, 4], [1, 2, 3, 4]) == (0.0, 1.0)
    assert ks_test([1, 2, 3, 4], [3, 4, 5, 6]).statistic == 0.5
    assert ks_test([1, 2], [3, 4, 5]).statistic == 1.0
    assert ks_test([1, 1, 1, 2], [1, 2, 2, 2]).statistic == 0.5


def test_samples_of_one_distribution_are_rejected_as_often_as_p_says() -> None:
    random = np.random.default_rng(7)
    tests = [ks_test(random.exponential(size=400), random.exponential(size=300)).p for _ in range(400)]
    assert 0.02 < sum(p < 0.05 for p in tests) / len(tests) < 0.08


def test_a_cut_tail_is_found() -> None:
    lengths = np.random.default_rng(3).lognormal(size=20_000)
    assert ks_test(lengths, lengths[lengths < np.quantile(lengths, 0.95)]).p < 1e-6


def test_without_values_nothing_differs() -> None:
    assert ks_test([], [1.0, 2.0]).p == 1.0


def test_histograms_give_what_their_values_give() -> None:
    random = np.random.default_rng(5)
    first, second = random.integers(0, 9, 300), random.integers(0, 8, 200)
    counts = [np.bincount(values, minlength=9) for values in (first, second)]
    assert ks_of_counts(*counts) == ks_test(first, second)
    assert ks_of_counts([0, 0], [3, 4]) == (0.0, 1.0) == ks_of_counts([], [])
