"""`ks_test`, the two-sample Kolmogorov-Smirnov test: do two samples come from a common distribution?"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_TERMS: Final = 100
"""Number of terms of the distribution's series."""


class KsTest(NamedTuple):
    """The outcome of a Kolmogorov-Smirnov test: gap and probability."""

    statistic: float
    """The largest gap between the two empirical distribution functions, 0 to 1."""
    p: float
    """The probability of a gap at least this large if both samples come from one distribution."""


def ks_test(first: npt.ArrayLike, second: npt.ArrayLike) -> KsTest:
    """Returns the test with the asymptotic p, accurate from some dozens of values on; p is 1 if a sample is empty.

    Values that occur often (ties) make p larger than it should be, never smaller.
    """
    a = np.asarray(first, dtype=np.float64)
    b = np.asarray(second, dtype=np.float64)
    _, places = np.unique(np.concatenate((a, b)), return_inverse=True)
    kinds = int(places.max(initial=-1)) + 1
    return ks_of_counts(np.bincount(places[: a.size], minlength=kinds), np.bincount(places[a.size :], minlength=kinds))


def ks_of_counts(first: npt.ArrayLike, second: npt.ArrayLike) -> KsTest:
    """Returns the test of two histograms: counts of equal values, in ascending order, in each sample."""
    a = np.cumsum(np.asarray(first, dtype=np.int64))
    b = np.cumsum(np.asarray(second, dtype=np.int64))
    if not a.size or not a[-1] or not b[-1]:
        return KsTest(0.0, 1.0)
    statistic = float(np.max(np.abs(a / a[-1] - b / b[-1])))
    return KsTest(statistic, kolmogorov(statistic * math.sqrt(a[-1] * b[-1] / (a[-1] + b[-1]))))


def kolmogorov(x: float) -> float:
    """Returns the survival function of Kolmogorov's distribution: 2 * sum of (-1)^(k-1) * exp(-2 k^2 x^2)."""
    if x < 0.2:
        return 1.0  # exact to 15 digits; the series needs ever more terms there
    total = math.fsum((-1) ** (k - 1) * math.exp(-2.0 * k * k * x * x) for k in range(1, _TERMS + 1))
    return min(1.0, max(0.0, 2.0 * total))
