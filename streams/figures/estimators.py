"""Estimates from samples: of the best of several tries, of a share or a mean with its uncertainty, of a difference."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE: Final = 0.95
"""Probability with which a confidence interval contains the true value."""
_EXACT_PAIRS: Final = 1000
"""Maximum number of decided pairs for an exact sign test; beyond it the normal distribution is as good."""


def pass_at(right: NDArray[np.bool_], k: int) -> float:
    """Estimates the share of tasks solved at least once in `k` tries  # right: [tasks, tries]

    Unbiased: 1 - C(n - c, k) / C(n, k), where c of n tries are right. Source: Chen et al. 2021, arXiv 2107.03374.
    """
    tries = right.shape[1]
    missed = 0.0
    for solved in right.sum(axis=1).tolist():
        missed += math.comb(tries - solved, k) / math.comb(tries, k)
    return float(1.0 - missed / len(right))


def best_at(values: NDArray[np.floating[Any]], k: int) -> float:
    """Estimates the mean over tasks of the highest of `k` tries  # values: [tasks, tries]

    Unbiased: the mean over all choices of k tries.
    """
    import numpy as np

    tries = values.shape[1]
    shares = np.array([math.comb(rank, k - 1) / math.comb(tries, k) for rank in range(tries)])
    return float((np.sort(values.astype("f8"), axis=1) @ shares).mean())


def worst_at(values: NDArray[np.floating[Any]], k: int) -> float:
    """Estimates the mean over tasks of the lowest of `k` tries  # values: [tasks, tries]

    Unbiased: the mean over all choices of k tries.
    """
    return -best_at(-values, k)


def majority_at(right: NDArray[np.bool_], votes: NDArray[np.integer[Any]], k: int) -> float:
    """Estimates the share of tasks with a right answer as the most frequent of `k` tries  # both: [tasks, tries]

    The mean over as many distinct choices of k tries as there are side by side, which is unbiased. Equally frequent
    answers count alike.
    """
    blocks = int(right.shape[1]) // k
    total = 0.0
    for flags, names in zip(right, votes, strict=True):
        for block in range(blocks):
            block_slice = slice(block * k, (block + 1) * k)
            total += _majority(flags[block_slice].tolist(), names[block_slice].tolist())
    return total / (blocks * len(right))


def _majority(right: list[bool], votes: list[int]) -> float:
    """Computes the share of right answers among the most frequent ones."""
    counts: dict[int, int] = {}
    solved: dict[int, int] = {}
    for flag, vote in zip(right, votes, strict=True):
        counts[vote] = counts.get(vote, 0) + 1
        solved[vote] = solved.get(vote, 0) + flag
    most = max(counts.values())
    winners = [vote for vote, count in counts.items() if count == most]
    return float(sum(solved[vote] for vote in winners)) / (most * len(winners))


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Computes Wilson's confidence interval of a share. Source: Wilson 1927, J. Am. Stat. Assoc. 22, 209-212."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    shrink = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / shrink
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / shrink
    # At the ends the two terms are equal except for rounding.
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == trials else middle + half
    return low, high


def resampled_means(values: NDArray[np.floating[Any]], indices: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Computes the mean of each resample  # values: [n], indices: [resamples, n]"""
    means: NDArray[np.float64] = values.astype("f8")[indices].mean(axis=1)
    return means


def bootstrap(
    values: NDArray[np.floating[Any]], indices: NDArray[np.integer[Any]], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Computes the percentile interval of a mean. Source: Efron 1979, Ann. Stat. 7, 1-26  # indices: [resamples, n]"""
    import numpy as np

    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled_means(values, indices), [tail, 1 - tail])
    return float(low), float(high)


def sign_test(won: int, lost: int) -> float:
    """Computes the two-sided probability that chance divides the decided pairs at least as unevenly; equal pairs do not
    count.
    """
    pairs = won + lost
    if pairs == 0:
        return 1.0
    fewer = min(won, lost)
    if pairs <= _EXACT_PAIRS:
        ways = sum(math.comb(pairs, count) for count in range(fewer + 1))
        return min(1.0, float(2 * ways / 2**pairs))
    # With half a pair of continuity correction.
    return min(1.0, 2 * NormalDist(pairs / 2, math.sqrt(pairs) / 2).cdf(fewer + 0.5))
