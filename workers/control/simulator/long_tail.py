"""`LongTail` is the distribution of rollouts' durations: log-normal with a given tail, cut off where a response is."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

_NORMAL: Final = NormalDist()
_P99: Final = _NORMAL.inv_cdf(0.99)


class LongTail(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of rollouts, each drawn on its own. A tail of 1 makes them all equal."""

    median_s: float = 1.0
    tail: float = 10.0
    """The 99th percentile over the median, before the cut."""
    cut: float = 10.0
    """The longest rollout, in medians: what would take longer ends there, as a response does at its longest."""

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm."""
        return math.log(self.tail) / _P99

    @property
    def mean_s(self) -> float:
        """The mean, in closed form."""
        sigma = self.sigma
        if sigma == 0:
            return self.median_s * min(1.0, self.cut)
        reach = math.log(self.cut)
        # E[min(X, c)] of a log-normal X with median 1: the part below the cut, and c for everything beyond it.
        below = math.exp(sigma * sigma / 2) * _NORMAL.cdf((reach - sigma * sigma) / sigma)
        return self.median_s * (below + self.cut * (1 - _NORMAL.cdf(reach / sigma)))

    def draw(self, random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
        """`count` durations, in seconds."""
        multiples: npt.NDArray[np.float64] = np.exp(self.sigma * random.standard_normal(count))
        durations: npt.NDArray[np.float64] = self.median_s * np.minimum(multiples, self.cut)
        return durations
