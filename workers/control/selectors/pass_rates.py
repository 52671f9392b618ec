"""`PassRates`: how often the model succeeds at each row, as Trinity-RFT's interpolating Beta estimator has it (BOTS).

Each row's rate is Beta(alpha, beta), from (1, 1) on. What was observed in a step counts with the weight 1 - rho. What
the step says of all rows counts with rho: two columns are the pass rates of a weaker and a stronger model, and the
model under training lies between the two as far as it did on the rows of the step (arXiv 2510.26374).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_KEPT_OF_CAPABILITY: Final = 0.9
"""The share of the former capability that is kept in a step."""
_NO_DIFFERENCE: Final = 1e-6
"""What is added to the difference of the two models, which may be nothing."""


class PassRates:
    """The estimate after so many steps of observations."""

    def __init__(self, anchors: NDArray[np.float64], *, tries: float, forgets: float, trusts: float) -> None:
        """`anchors` are the pass rates of the weaker and the stronger model  # [rows, 2].

        `tries` is m, the weight of a step in attempts; `forgets` is lambda, and `trusts` is rho.
        """
        self._anchors = anchors
        self._tries = tries
        self._forgets = forgets
        self._trusts = trusts
        self._capability: float | None = None
        """0 for a model like the weaker one, 1 for one like the stronger; None before anything was observed."""
        self.alphas = np.ones(len(anchors))
        self.betas = np.ones(len(anchors))

    def observe(self, rows: NDArray[np.int64], rewards: NDArray[np.float64]) -> None:
        """Takes in the mean rewards of a step's rows. They count as pass rates: within 0 and 1."""
        rates = np.clip(rewards, 0.0, 1.0)
        weak, strong = self._anchors[rows].mean(axis=0)
        difference = float(strong - weak) + _NO_DIFFERENCE
        if difference:
            capability = (float(rates.mean()) - float(weak)) / difference
            former = self._capability
            kept = _KEPT_OF_CAPABILITY
            self._capability = capability if former is None else kept * former + (1 - kept) * capability
        weaker = self._anchors[:, 0]
        stronger = self._anchors[:, 1]
        predicted = np.clip(weaker + (stronger - weaker) * (self._capability or 0.0), 0.0, 1.0)
        predicted[rows] = rates
        passed = np.zeros(len(self._anchors))
        failed = np.zeros(len(self._anchors))
        passed[rows] = self._tries * rates
        failed[rows] = self._tries * (1 - rates)
        self.alphas = self._counted_on(self.alphas, passed, predicted)
        self.betas = self._counted_on(self.betas, failed, 1 - predicted)

    def means(self) -> NDArray[np.float64]:
        """The mean of each row's distribution  # [rows]."""
        return self.alphas / (self.alphas + self.betas)

    def sampled(self, chance: np.random.Generator) -> NDArray[np.float64]:
        """A draw from each row's distribution  # [rows]."""
        return chance.beta(self.alphas, self.betas)

    def _counted_on(
        self, former: NDArray[np.float64], observed: NDArray[np.float64], predicted: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        forgets = self._forgets
        trusts = self._trusts
        # The prior (1, 1) comes back as fast as what was observed is forgotten.
        return (1 - forgets) * former + forgets + (1 - trusts) * observed + trusts * self._tries * predicted
