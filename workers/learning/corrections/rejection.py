"""Corrections that mask tokens or complete responses: by their ratio or divergence, KPop, off-policy sequence masking,
M2PO.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

from msgspec import Meta

from rftd.ops.errors import ConfigError
from rftd.workers.learning.corrections.correction import Corrected, Mismatch, Scope
from rftd.workers.learning.corrections.importance import High, Low, check_bounds, check_level, ratio_of

if TYPE_CHECKING:
    from torch import Tensor


Threshold: TypeAlias = Annotated[float, Meta(gt=0)]
"""Type of a threshold above 0."""
LowOrInverse: TypeAlias = Annotated[Low | None, Meta(description="lower bound of w; none: 1 / `high`")]
"""Type of an argument `low`: the lower bound of w, by default the inverse of the upper one."""
MostDivergence: TypeAlias = Annotated[Threshold, Meta(description="upper bound of the divergence")]
"""Type of an argument `threshold`: the greatest divergence of a token or response that keeps its loss."""
Over: TypeAlias = Literal["token", "sum", "mean", "max"]
"""The level of a divergence: the token's own, or the sum, mean or maximum of its response's tokens."""
OfOver: TypeAlias = Annotated[
    Over, Meta(description="divergence of the token, or its sum, mean or maximum over the response")
]
"""Type of an argument `level`: an `Over` with its description for the documentation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioRejection:
    """A mask that keeps tokens or responses with w in [low, high], where w is the ratio of the proximal to the rollout
    probability; without `low`, the lower bound is 1 / high.
    """

    level: str
    """Level of w: `token`, or its product (`sequence`) or geometric mean (`geometric`) over the response."""
    high: float
    """Upper bound of w."""
    low: float | None = None
    """Lower bound of w; None: 1 / high."""

    def __post_init__(self) -> None:
        """Raises ConfigError for bounds that `check_bounds` refuses."""
        check_bounds(self.low if self.low is not None else 0.0, self.high)

    @property
    def scope(self) -> Scope:
        """`response`: a token is judged by tokens of its own response alone."""
        return "response"

    @property
    def weighs(self) -> bool:
        """False: tokens are masked or marked, not weighted."""
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns the mask of the tokens whose w at the level is within the bounds, both included  # [N] bool"""
        # Symmetric in log w: what drifted up and what drifted down by as much are treated alike.
        low = 1.0 / self.high if self.low is None else self.low
        ratio = ratio_of(tokens, self.level)
        return Corrected(keep=(ratio >= low) & (ratio <= self.high))


@dataclass(frozen=True, kw_only=True, slots=True)
class DivergenceRejection:
    """A mask that keeps divergences of at most `threshold`: k2 = (log w)²/2, k3 = w - log w - 1."""

    kind: str
    """Estimator of the divergence, `k2` or `k3`."""
    level: Over
    """Level of the divergence: `token`, or its `sum`, `mean` or maximum (`max`) over the response."""
    threshold: float
    """Upper bound of the divergence."""

    def __post_init__(self) -> None:
        """Raises ConfigError for an unknown level, and for a threshold not finite and above 0."""
        check_level(self.level, get_args(Over))
        check_threshold(self.threshold)

    @property
    def scope(self) -> Scope:
        """`response`: a token is judged by tokens of its own response alone."""
        return "response"

    @property
    def weighs(self) -> bool:
        """False: tokens are masked or marked, not weighted."""
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns the mask of the tokens whose divergence at the level is at most the threshold  # [N] bool"""
        divergence = self._divergence(tokens.log_ratio)
        if self.level == "sum":
            divergence = tokens.of_sequences(divergence)
        elif self.level == "mean":
            divergence = tokens.mean_of_sequences(divergence)
        elif self.level == "max":
            divergence = tokens.max_of_sequences(divergence)
        return Corrected(keep=divergence <= self.threshold)

    def _divergence(self, log_ratio: Tensor) -> Tensor:
        """Returns the divergence of each token  # [N]"""
        return 0.5 * log_ratio.square() if self.kind == "k2" else log_ratio.exp() - log_ratio - 1


def token(*, high: High = 2.0, low: LowOrInverse = None) -> RatioRejection:
    """Masks tokens with a ratio outside [low, high]."""
    return RatioRejection(level="token", high=high, low=low)


def sequence(*, high: High = 2.0, low: LowOrInverse = None) -> RatioRejection:
    """Masks responses with a product of ratios outside [low, high]."""
    return RatioRejection(level="sequence", high=high, low=low)


def geometric(*, high: High = 1.01, low: LowOrInverse = None) -> RatioRejection:
    """Masks responses with a geometric mean of ratios outside [low, high], independent of their length."""
    return RatioRejection(level="geometric", high=high, low=low)


def k2(*, threshold: MostDivergence, level: OfOver = "mean") -> DivergenceRejection:
    """Masks tokens or responses with k2, half the squared log-ratio, above the threshold."""
    return DivergenceRejection(kind="k2", level=level, threshold=threshold)


def k3(*, threshold: MostDivergence, level: OfOver = "mean") -> DivergenceRejection:
    """Masks tokens or responses with k3, a KL estimate that is never negative, above the threshold."""
    return DivergenceRejection(kind="k3", level=level, threshold=threshold)


def check_threshold(threshold: float) -> None:
    """Raises ConfigError unless the threshold is finite and above 0."""
    if not (math.isfinite(threshold) and threshold > 0):
        raise ConfigError(
            f"the threshold is {threshold}",
            field="rollout_correction.corrections.threshold",
            fix="use a number above 0",
        )


_SURE = 1e-6
"""Smallest distance of the clamped probabilities from 0 and 1, where a KL is infinite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KPop:
    """A mask that keeps tokens with both Bernoulli KLs, p to q and q to p, at most `threshold`, where p is the proximal
    and q the rollout probability.
    """

    threshold: Annotated[Threshold, Meta(description="upper bound of the KL")] = 0.1
    """Upper bound of both KLs."""

    def __post_init__(self) -> None:
        """Raises ConfigError unless the threshold is finite and above 0."""
        check_threshold(self.threshold)

    @property
    def scope(self) -> Scope:
        """`response`: a token is judged by itself, and so within its response."""
        return "response"

    @property
    def weighs(self) -> bool:
        """False: tokens are masked or marked, not weighted."""
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns the mask of the tokens whose larger Bernoulli KL is at most the threshold  # [N] bool"""
        p = tokens.proximal.exp().clamp(_SURE, 1 - _SURE)
        q = tokens.rollout.exp().clamp(_SURE, 1 - _SURE)
        return Corrected(keep=_bernoulli_kl(p, q).maximum(_bernoulli_kl(q, p)) <= self.threshold)


def _bernoulli_kl(p: Tensor, q: Tensor) -> Tensor:
    """Returns the KL of two Bernoulli distributions with these probabilities  # [N], [N] -> [N]"""
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


@dataclass(frozen=True, kw_only=True, slots=True)
class Opsm:
    """Off-policy sequence masking: tokens have no loss where A < 0 and the response's mean of -log w is above
    `delta`.
    """

    delta: Annotated[Threshold, Meta(description="upper bound of the mean of -log w")] = 1e-4
    """Upper bound of the mean of -log w."""

    def __post_init__(self) -> None:
        """Raises ConfigError unless `delta` is finite and above 0."""
        check_threshold(self.delta)

    @property
    def scope(self) -> Scope:
        """`response`: a token is judged by tokens of its own response alone."""
        return "response"

    @property
    def weighs(self) -> bool:
        """False: tokens are masked or marked, not weighted."""
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns the mask of the tokens with A >= 0, or in a response whose mean of -log w is within `delta`  # [N]"""
        drift = tokens.mean_of_sequences(-tokens.log_ratio)
        return Corrected(keep=(tokens.advantages >= 0) | (drift <= self.delta))


@dataclass(frozen=True, kw_only=True, slots=True)
class M2po:
    """A mask that keeps as many tokens as possible while the mean of (log w)² over the kept candidates is at most
    `threshold`.

    With `away_only`, candidates are only tokens whose advantage moves them further away: A > 0 and w > 1, or A < 0 and
    w < 1. All tokens of one optimizer step are compared, with the weights before it.
    """

    threshold: Annotated[Threshold, Meta(description="upper bound of the mean of (log w)²")] = 0.04
    """Upper bound of the mean of (log w)²."""
    away_only: Annotated[bool, Meta(description="true: mask only tokens that their advantage moves further away")] = (
        True
    )
    """True: only tokens whose advantage moves them further away are masked."""

    def __post_init__(self) -> None:
        """Raises ConfigError unless the threshold is finite and at least 0; at 0, only candidates with w = 1 stay."""
        if self.threshold != 0:
            check_threshold(self.threshold)

    @property
    def scope(self) -> Scope:
        """`mini_batch`: a token is judged among all tokens of its optimizer step."""
        return "mini_batch"

    @property
    def weighs(self) -> bool:
        """False: tokens are masked or marked, not weighted."""
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns the mask of the tokens that are no candidates, or within the threshold  # [N] bool

        Candidates go in ascending order of (log w)², equal ones together; tokens with A = 0 are none with `away_only`.
        """
        # float64: the running mean is compared with the threshold, and a sum over a long batch in float32 drifts.
        squares = tokens.log_ratio.double().square()
        candidate = tokens.advantages * tokens.log_ratio > 0 if self.away_only else squares >= 0
        ascending = squares[candidate].sort().values
        # The means of an ascending sequence ascend, so the first one beyond the threshold says where to cut, without a
        # search.
        means = ascending.cumsum(0) / ascending.new_ones(ascending.shape).cumsum(0)
        beyond = ascending[means > self.threshold]  # their means ascend too; equal squares go together
        within = squares < beyond[0] if len(beyond) else squares >= 0
        return Corrected(keep=~candidate | within)
