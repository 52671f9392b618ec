"""Figures of every step at no further forward pass: the distance between current weights and the weights that drew the
tokens.

Let d = logprob - logprob under the weights that drew the token, w = e^d. Of the tokens that rollouts drew:

    mismatch/k3/mean, /max            e^d - 1 - d, which estimates the KL of the rollouts to the present weights
    mismatch/ratio/mean, /min, /max   w; within e^±20
    mismatch/chi2                     mean of w² - 1
    mismatch/ess                      (Σ w)² / (N Σ w²): the effective share of the batch's tokens

Of all trained tokens, whatever their aggregation:

    actor/pg_clipfrac_positive, _negative       share clipped, with a positive or a negative advantage
    correction/masked, _positive, _negative     share masked by corrections
    correction/multiplier/mean, /min, /max      of corrections, if there are any
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

_DRAWN = "mismatch/drawn"
"""Internal figure: number of tokens drawn by rollouts."""
_SQUARE = "mismatch/square"
"""Internal figure: sum of w²."""


def of_tokens(drawn: LossTokens, tokens: LossTokens, policy: TokenLoss, mean: Tensor) -> dict[str, Tensor]:
    """Returns the figures of a micro-batch's tokens, to be combined by `joined` and then `finished`.

    `drawn` are the tokens before corrections, `tokens` after; `mean` is each token's weight in a mean over the batch
    # [N]
    """
    gap = (drawn.logprobs.detach() - drawn.old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # Dataset rows have zeros for old log-probabilities: their ratio would be that to a probability of 1.
    gap = gap.masked_fill(drawn.expert, 0.0)
    share = mean.masked_fill(drawn.expert, 0.0)
    ratio = gap.exp()
    k3 = ratio - 1 - gap
    figures = {
        # Sums, not means: those of micro-batches are added, and `finished` divides once by the share of drawn tokens.
        _DRAWN: share.sum(),
        _SQUARE: (ratio.square() * share).sum(),
        "mismatch/k3/mean": (k3 * share).sum(),
        "mismatch/k3/max": k3.max(),
        "mismatch/ratio/mean": (ratio * share).sum(),
        "mismatch/ratio/max": ratio.max(),
        "mismatch/ratio/min": ratio.min(),
    }
    clipped = policy.metrics.get("pg_clipfrac")
    if clipped is not None:
        figures |= _by_sign("actor/pg_clipfrac", clipped * mean, tokens.advantages)
    if tokens.keep is not None:
        masked = mean.masked_fill(tokens.keep, 0.0)
        figures["correction/masked"] = masked.sum()
        figures |= _by_sign("correction/masked", masked, tokens.advantages)
    if tokens.multiplier is not None:
        figures["correction/multiplier/mean"] = (tokens.multiplier * mean).sum()
        figures["correction/multiplier/max"] = tokens.multiplier.max()
        figures["correction/multiplier/min"] = tokens.multiplier.min()
    return figures


def _by_sign(name: str, values: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    """Returns the sums over tokens of positive and of negative advantage, under two names."""
    return {
        f"{name}_positive": values.masked_fill(advantages <= 0, 0.0).sum(),
        f"{name}_negative": values.masked_fill(advantages >= 0, 0.0).sum(),
    }


def joined(name: str, one: Tensor, other: Tensor) -> Tensor:
    """Combines a figure of two micro-batches: their sum, or the extreme if the name ends in `/max` or `/min`."""
    if name.endswith("/max"):
        return one.maximum(other)
    return one.minimum(other) if name.endswith("/min") else one + other


def of_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combines the figures of a batch's optimizer steps: the mean over steps with the figure, or the extreme if the
    name ends in `/max` or `/min`.
    """
    if len(steps) == 1:
        return dict(steps[0])
    columns: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            columns.setdefault(name, []).append(value)
    return {name: _over_steps(name, values) for name, values in columns.items()}


def _over_steps(name: str, values: Sequence[float]) -> float:
    """Returns a figure of a batch from those of its optimizer steps: maximum, minimum, or mean, by its name."""
    if name.endswith("/max"):
        return max(values)
    return min(values) if name.endswith("/min") else math.fsum(values) / len(values)


def finished(figures: dict[str, float]) -> dict[str, float]:
    """Turns the combined sums of a step's micro-batches into means and ratios to report."""
    # Both are sums that the ratios below are made of, and no figures themselves.
    share = figures.pop(_DRAWN, 0.0)
    square = figures.pop(_SQUARE, 0.0)
    if share <= 0:
        return {name: value for name, value in figures.items() if not name.startswith("mismatch/")}
    for name in ("mismatch/k3/mean", "mismatch/ratio/mean"):
        figures[name] /= share
    square /= share
    figures["mismatch/chi2"] = square - 1
    figures["mismatch/ess"] = figures["mismatch/ratio/mean"] ** 2 / square
    for name in ("correction/masked", "correction/masked_positive", "correction/masked_negative"):
        figures.setdefault(name, 0.0)
    return figures
