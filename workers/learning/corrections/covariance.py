"""Corrections by the covariance of advantage and log-probability, which drives the loss of entropy.

The covariance of a token is (A - mean of A) (log p - mean of log p), with means over the tokens of its optimizer step.

Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rftd.workers.learning.corrections.correction import Corrected, Mismatch, Scope

if TYPE_CHECKING:
    from torch import Tensor

_MIXING: Final = 2654435761  # Knuth's multiplier for hashes of 32 bits
"""Multiplier of Knuth's hash of 32 bits."""
_BITS: Final = (1 << 32) - 1
"""All 32 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipCov:
    """A mask that drops a share `ratio` of the step's tokens, at least one, drawn at random from tokens with a
    covariance between `low` and `high` and a ratio not stopped by PPO's clip.

    The draw is determined by the log-probabilities under the weights that drew the tokens, so that a repeated step
    drops the same tokens.
    """

    ratio: float
    """Share of the step's tokens to mask."""
    low: float
    """Covariance above which a token may be masked."""
    high: float
    """Covariance below which a token may be masked."""
    clip_range_low: float
    """PPO's clip range below 1."""
    clip_range_high: float
    """PPO's clip range above 1."""

    @property
    def scope(self) -> Scope:
        """Tokens among which the correction decides."""
        return "mini_batch"

    @property
    def weighs(self) -> bool:
        """False: tokens are masked or marked, not weighted."""
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns the mask of the tokens that keep their loss."""
        covariance = covariances(tokens)
        w = tokens.log_ratio.exp()
        clipped = ((tokens.advantages > 0) & (w > 1 + self.clip_range_high)) | (
            (tokens.advantages < 0) & (w < 1 - self.clip_range_low)
        )
        candidates = ((covariance > self.low) & (covariance < self.high) & ~clipped).nonzero()[:, 0]
        # stable: equal numbers keep the order of the batch, so a replay chooses the same tokens.
        drawn = _draws(tokens.rollout[candidates]).argsort(stable=True)[: _share(self.ratio, len(covariance))]
        keep = covariance.new_ones(covariance.shape).bool()
        keep[candidates[drawn]] = False
        return Corrected(keep=keep)


@dataclass(frozen=True, kw_only=True, slots=True)
class KlCov:
    """Marks on the share `ratio` of the step's tokens, at least one, with the largest covariances above 0."""

    ratio: float
    """Share of the step's tokens to mark."""

    @property
    def scope(self) -> Scope:
        """Tokens among which the correction decides."""
        return "mini_batch"

    @property
    def weighs(self) -> bool:
        """False: tokens are masked or marked, not weighted."""
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns the marks of the tokens of largest covariance."""
        covariance = covariances(tokens)
        largest = covariance.argsort(descending=True, stable=True)[: _share(self.ratio, len(covariance))]
        marked = covariance.new_zeros(covariance.shape).bool()
        marked[largest] = covariance[largest] > 0
        return Corrected(marked=marked)


def covariances(tokens: Mismatch) -> Tensor:
    """Returns the covariance of each token, (A - mean of A) (log p - mean of log p), in float64  # [N]"""
    # float64: a product of two differences of near equal numbers has few digits in float32.
    advantages = tokens.advantages.double()
    logprobs = tokens.proximal.double()
    count = max(1, len(advantages))
    return (advantages - advantages.sum() / count) * (logprobs - logprobs.sum() / count)


def _share(ratio: float, count: int) -> int:
    """Returns a share of `count` as a number, at least 1."""
    return max(1, int(ratio * count))


def _draws(logprobs: Tensor) -> Tensor:
    """Returns hashes of log-probabilities, equal for equal ones, as a random order  # [N] -> [N] int64"""
    # By frexp, not by a view as integers: log-probabilities may be float32 or float64, and equal ones have equal
    # hashes.
    mantissa, exponent = logprobs.frexp()
    bits = ((mantissa * (1 << 24)).long() + exponent.long() * (1 << 24)) & _BITS
    # A product may wrap in int64: its low 32 bits, which alone are kept, are right all the same.
    mixed = (bits * _MIXING) & _BITS
    return ((mixed ^ (mixed >> 15)) * _MIXING) & _BITS
