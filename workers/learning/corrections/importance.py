"""`decoupled`, `tis`, `icepop`: multiply the loss by the ratio w of proximal to rollout probability."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

from msgspec import Meta

from rftd.ops.errors import ConfigError
from rftd.workers.learning.corrections.correction import Corrected, Mismatch, Scope
from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

Low: TypeAlias = Annotated[float, Meta(ge=0, le=1, description="lower bound of w")]
"""Type of a lower bound of w."""
High: TypeAlias = Annotated[float, Meta(ge=1, description="upper bound of w")]
"""Type of an upper bound of w."""
Level: TypeAlias = Literal["token", "sequence", "geometric"]
"""The level of w: the token's ratio, the product over its response, or the geometric mean over its response."""
OfLevel: TypeAlias = Annotated[
    Level, Meta(description="w of the token, or its product or geometric mean over the response")
]
"""Type of the level of w."""
Cap: TypeAlias = Annotated[High | None, Meta(description="upper bound of w; none: unbounded")]
"""Type of an optional upper bound of w."""
Normalised: TypeAlias = Annotated[bool, Meta(description="true: divide the weights by their mean over the batch")]
"""Type of the switch for weights divided by their mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Importance:
    """A multiplier: w clamped to [low, high]; or with `zero_outside`, w inside of [low, high] and 0 outside."""

    level: Level = "token"
    """Unit of w: a token or a complete response."""
    low: float = 0.0
    """Lower bound of w."""
    high: float = math.inf
    """Upper bound of w."""
    zero_outside: bool = False
    """True: w outside of the bounds is 0 instead of clamped."""
    batch_normalize: bool = False
    """True: multipliers are divided by their mean over the batch: over tokens at the level `token`, else over
    responses.
    """

    def __post_init__(self) -> None:
        check_level(self.level, get_args(Level))
        check_bounds(self.low, self.high)

    @property
    def scope(self) -> Scope:
        """Tokens among which the correction decides."""
        return "batch" if self.batch_normalize else "response"

    @property
    def weighs(self) -> bool:
        """True: the correction multiplies the loss."""
        return True

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns the multiplier of each token."""
        ratio = ratio_of(tokens, self.level)
        if self.zero_outside:
            weight = ratio.where((ratio >= self.low) & (ratio <= self.high), ratio.new_zeros(()))
        else:
            weight = ratio.clamp(self.low, self.high)
        if self.batch_normalize:
            # clamp: where icepop leaves nothing of a batch all weights are 0, and so they stay.
            weight = weight / self._mean(tokens, weight).clamp(min=1e-8)
        return Corrected(multiplier=weight)

    def _mean(self, tokens: Mismatch, weight: Tensor) -> Tensor:
        """Returns the mean weight over the tokens, or over the responses if a response has one weight."""
        if self.level == "token":
            return weight.mean()
        # Each response counts once, however many tokens repeat its weight.
        shares = 1.0 / tokens.of_sequences(weight.new_ones(weight.shape))
        return (weight * shares).sum() / shares.sum()


def decoupled(*, level: OfLevel = "token", cap: Cap = None) -> Importance:
    """Multiplies the loss by w, at most `cap` if set: decoupled PPO.

    Source: Hilton et al. 2022, Batch size-invariance for policy optimization, arXiv 2110.00641.
    """
    return Importance(level=level, high=math.inf if cap is None else cap)


def tis(
    *, level: OfLevel = "token", low: Low = 0.0, high: High = 2.0, batch_normalize: Normalised = False
) -> Importance:
    """Multiplies the loss by w clamped to [low, high]: truncated importance sampling."""
    return Importance(level=level, low=low, high=high, batch_normalize=batch_normalize)


def icepop(
    *, level: OfLevel = "token", low: Low = 0.5, high: High = 5.0, batch_normalize: Normalised = False
) -> Importance:
    """Multiplies the loss by w within [low, high], and by 0 outside: IcePop.

    Source: Ling Team 2025, Every Step Evolves, arXiv 2510.18855.
    """
    return Importance(level=level, low=low, high=high, zero_outside=True, batch_normalize=batch_normalize)


def ratio_of(tokens: Mismatch, level: str) -> Tensor:
    """Returns w of each token at the level, within e^±20  # [N]"""
    log_ratio = tokens.log_ratio
    if level == "sequence":
        # Clamped once more: the sum of a long response of clamped tokens overflows all the same.
        log_ratio = tokens.of_sequences(log_ratio).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    elif level == "geometric":
        log_ratio = tokens.mean_of_sequences(log_ratio)
    return log_ratio.exp()


def check_level(level: str, known: tuple[str, ...]) -> None:
    """Raises ConfigError for a level missing from `known`."""
    if level not in known:
        raise ConfigError(
            f"unknown level {level!r}", field="rollout_correction.corrections.level", fix=f"one of {', '.join(known)}"
        )


def check_bounds(low: float, high: float) -> None:
    """Raises ConfigError unless 0 <= low <= 1 <= high."""
    if not 0 <= low <= 1 <= high:
        raise ConfigError(
            f"the ratio's bounds are [{low}, {high}]",
            field="rollout_correction.corrections.high",
            fix="let 1 lie between them: that is the ratio of tokens that need no correction",
        )
