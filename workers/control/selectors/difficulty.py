"""`DifficultyBased`: rows whose estimated pass rate (`PassRates`) is near a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.workers.control.selectors.selector import DrawView

_CAPABILITY_DECAY: Final = 0.9
"""Fraction of the former capability kept at each step."""
_DIFFERENCE_EPSILON: Final = 1e-6
"""Small addend to the difference between the two models' pass rates, against division by zero."""

_FORGOTTEN: Final = 1e-16
"""Weight of old observations below which they are ignored."""
_CAPABILITY_STEPS: Final = 350
"""Steps after which the capability has forgotten its former values."""


class PassRates:
    """Estimated pass rates of all rows after a number of steps of observations, as beta distributions."""

    def __init__(self, anchors: NDArray[np.float64], *, tries: float, forgets: float, trusts: float) -> None:
        """`anchors` are the pass rates of the weaker and the stronger model  # [rows, 2].

        `tries` is m, the weight of a step in attempts; `forgets` is lambda, and `trusts` is rho.
        """
        self._anchors = anchors
        self._tries = tries
        self._forgets = forgets
        self._trusts = trusts
        self._capability: float | None = None
        """0 for a model like the weaker one, 1 for one like the stronger; None before the first observation."""
        self.alphas = np.ones(len(anchors))
        self.betas = np.ones(len(anchors))

    def observe(self, rows: NDArray[np.int64], rewards: NDArray[np.float64]) -> None:
        """Adds the mean rewards of a step's rows. They count as pass rates, clipped to 0 and 1."""
        rates = np.clip(rewards, 0.0, 1.0)
        weak, strong = self._anchors[rows].mean(axis=0)
        difference = float(strong - weak) + _DIFFERENCE_EPSILON
        if difference:
            capability = (float(rates.mean()) - float(weak)) / difference
            former = self._capability
            share = _CAPABILITY_DECAY
            self._capability = capability if former is None else share * former + (1 - share) * capability
        weaker = self._anchors[:, 0]
        stronger = self._anchors[:, 1]
        predicted = np.clip(weaker + (stronger - weaker) * (self._capability or 0.0), 0.0, 1.0)
        predicted[rows] = rates
        passed = np.zeros(len(self._anchors))
        failed = np.zeros(len(self._anchors))
        passed[rows] = self._tries * rates
        failed[rows] = self._tries * (1 - rates)
        self.alphas = self._updated_counts(self.alphas, passed, predicted)
        self.betas = self._updated_counts(self.betas, failed, 1 - predicted)

    def means(self) -> NDArray[np.float64]:
        """Returns the mean of each row's distribution  # [rows]."""
        return self.alphas / (self.alphas + self.betas)

    def sampled(self, chance: np.random.Generator) -> NDArray[np.float64]:
        """Returns a draw from each row's distribution  # [rows]."""
        return chance.beta(self.alphas, self.betas)

    def _updated_counts(
        self, former: NDArray[np.float64], observed: NDArray[np.float64], predicted: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Returns beta parameters after one step: the former ones decayed, plus observed and predicted counts."""
        forgets = self._forgets
        trusts = self._trusts
        # The prior (1, 1) comes back as fast as observations are forgotten.
        return (1 - forgets) * former + forgets + (1 - trusts) * observed + trusts * self._tries * predicted


class DifficultyBased:
    """Trinity-RFT's `difficulty_based`, the method BOTS (arXiv 2510.26374).

    Rows are drawn without replacement, with the weights softmax(-|target_reward - rate| / tau); with tau 0 the nearest
    ones are taken. Rates are the means of `PassRates`, or draws from its distributions with `do_sample`.

    A step of observations is as many closed groups as a draw has rows. An estimate covers between `_span` and twice as
    many steps: it follows from the newest rewards alone, so that a restarted daemon repeats it.
    """

    follows_rewards: ClassVar[bool] = True
    """True: draws depend on the rewards of earlier groups."""
    once_an_epoch: ClassVar[bool] = False
    """False: a row may be drawn again before every other row was drawn."""

    def __init__(
        self,
        m: Annotated[int, msgspec.Meta(ge=1)] = 16,
        lamb: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2,
        rho: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2,
        target_reward: float = 1.0,
        tau: Annotated[float, msgspec.Meta(ge=0)] = 1.0,
        do_sample: bool = False,
    ) -> None:
        self._tries = m
        self._forgets = lamb
        self._trusts = rho
        self._target = target_reward
        self._tau = tau
        self._samples = do_sample
        self._span = 0
        """Number of steps in a block; an estimate begins with the block before the current one."""
        self._block = 0
        """Index of the block of steps with which `_estimate` begins."""
        self._steps = 0
        """Number of steps observed until now."""
        self._estimate: PassRates | None = None
        self._following: PassRates | None = None
        """Estimate beginning one block later, to replace `_estimate`."""

    @staticmethod
    def check_keys(keys: Sequence[str]) -> None:
        """Raises ConfigError unless exactly two columns are named."""
        if len(keys) != 2:
            raise ConfigError(
                f"difficulty_based needs two columns, and {len(keys)} are named",
                field="data_selector.feature_keys",
                fix="name the pass rates of a weaker and of a stronger model, in this order",
            )

    def draw(self, view: DrawView) -> Sequence[int]:
        """Returns the rows of this draw, the likeliest first."""
        estimate = self._estimate_for(view)
        chance = np.random.default_rng(view.seed + view.first)
        rates = estimate.sampled(chance) if self._samples else estimate.means()
        scores = -np.abs(self._target - rates)
        if self._tau:
            # The largest of scores with Gumbel noise are a draw without replacement by their softmax.
            scores = scores / self._tau + chance.gumbel(size=view.rows)
        return [int(row) for row in np.argsort(-scores, kind="stable")[: view.size]]

    def _estimate_for(self, view: DrawView) -> PassRates:
        """Returns the estimate for the view; steps observed in an earlier draw are not observed again."""
        steps = view.rewards.count // view.size
        if self._estimate is None or steps < self._steps:
            self._span = self._span_of(view.size)
            self._block = max(0, steps // self._span - 1)
            self._steps = self._block * self._span
            self._estimate, self._following = self._new_estimate(view), self._new_estimate(view)
        while self._steps < steps:
            self._step(view)
        return self._estimate

    def _step(self, view: DrawView) -> None:
        """Observes one more step of closed groups, and replaces the estimate at the end of a block."""
        assert self._estimate is not None and self._following is not None
        observed = view.rewards.between(self._steps * view.size, (self._steps + 1) * view.size)
        self._estimate.observe(*observed)
        if self._steps >= (self._block + 1) * self._span:
            self._following.observe(*observed)
        self._steps += 1
        if self._steps == (self._block + 2) * self._span:
            self._block += 1
            self._estimate = self._following
            self._following = self._new_estimate(view)

    def _new_estimate(self, view: DrawView) -> PassRates:
        """Returns the prior estimate of all rows, without observations."""
        return PassRates(view.columns, tries=self._tries, forgets=self._forgets, trusts=self._trusts)

    def _span_of(self, size: int) -> int:
        """Returns the steps of a block: enough to leave older observations without weight, within the rewards kept."""
        max_span = max(1, (limits.KEPT_REWARDS // size - 1) // 2)
        if self._forgets >= 1:
            return min(max_span, _CAPABILITY_STEPS)
        if self._forgets <= 0:
            return max_span
        steps_to_forget = math.ceil(math.log(_FORGOTTEN) / math.log1p(-self._forgets))
        return min(max_span, max(steps_to_forget, _CAPABILITY_STEPS))
