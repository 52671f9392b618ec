"""`token`, `sequence`, `geometric`, `k2`, `k3`: tokens or responses too far from what drew them are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.corrections.correction import Corrected, Mismatch
from rftd.workers.algorithms.corrections.importance import check_bounds, check_level, ratio_of

if TYPE_CHECKING:
    from torch import Tensor

LEVELS = ("token", "sum", "mean", "max")
"""Of the token itself, or over its response."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioRejection:
    """Keeps what has a ratio within [low, high]; without `low` its lower bound is 1 / high."""

    level: str
    high: float
    low: float | None = None

    def __post_init__(self) -> None:
        check_bounds(self.low if self.low is not None else 0.0, self.high)

    @property
    def whole_batch(self) -> bool:
        return False

    @property
    def weighs(self) -> bool:
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        low = 1.0 / self.high if self.low is None else self.low
        ratio = ratio_of(tokens, self.level)
        return Corrected(keep=(ratio >= low) & (ratio <= self.high))


@dataclass(frozen=True, kw_only=True, slots=True)
class DivergenceRejection:
    """Keeps what has a divergence of at most `threshold`: k2 = (log w)²/2, k3 = w - log w - 1."""

    kind: str
    level: str
    threshold: float

    def __post_init__(self) -> None:
        check_level(self.level, LEVELS)
        check_threshold(self.threshold)

    @property
    def whole_batch(self) -> bool:
        return False

    @property
    def weighs(self) -> bool:
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        divergence = self._divergence(tokens.log_ratio)
        if self.level == "sum":
            divergence = tokens.of_sequences(divergence)
        elif self.level == "mean":
            divergence = tokens.mean_of_sequences(divergence)
        elif self.level == "max":
            divergence = tokens.max_of_sequences(divergence)
        return Corrected(keep=divergence <= self.threshold)

    def _divergence(self, log_ratio: Tensor) -> Tensor:
        return 0.5 * log_ratio.square() if self.kind == "k2" else log_ratio.exp() - log_ratio - 1


def token(*, high: float = 2.0, low: float | None = None) -> RatioRejection:
    """Tokens whose ratio is outside [low, high]."""
    return RatioRejection(level="token", high=high, low=low)


def sequence(*, high: float = 2.0, low: float | None = None) -> RatioRejection:
    """Responses whose product of ratios is outside [low, high]."""
    return RatioRejection(level="sequence", high=high, low=low)


def geometric(*, high: float = 1.01, low: float | None = None) -> RatioRejection:
    """Responses whose geometric mean of ratios is outside [low, high]: their length plays no part."""
    return RatioRejection(level="geometric", high=high, low=low)


def k2(*, threshold: float, level: str = "mean") -> DivergenceRejection:
    """By half the squared log-ratio."""
    return DivergenceRejection(kind="k2", level=level, threshold=threshold)


def k3(*, threshold: float, level: str = "mean") -> DivergenceRejection:
    """By the estimate of the KL that is never negative."""
    return DivergenceRejection(kind="k3", level=level, threshold=threshold)


def check_threshold(threshold: float) -> None:
    """Raises ConfigError unless it is a number above 0."""
    if not (math.isfinite(threshold) and threshold > 0):
        raise ConfigError(
            f"the threshold is {threshold}",
            field="rollout_correction.corrections.threshold",
            fix="use a number above 0",
        )
