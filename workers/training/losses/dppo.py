"""`dppo` and `probability_clip`: a trust region of probabilities, not of ratios.

Both have a pull to the weights that drew the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class DppoLoss:
    """-keep A r adv_tau + kl_tau (log r)²; let Δ = p - old p. keep = 0 where A > 0, Δ > high, and A < 0, Δ < -low.

    A rare token may change by a large ratio, a frequent one hardly: what counts is the probability.
    Source: prime-rl's default loss (total variation as trust region, and a KL term), Prime Intellect 2026.
    """

    dppo_mask_low: float = 0.2
    dppo_mask_high: float = 0.2
    adv_tau: float = 1.0
    kl_tau: float = 1e-3

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(
            0,
            dppo_mask_low=self.dppo_mask_low,
            dppo_mask_high=self.dppo_mask_high,
            adv_tau=self.adv_tau,
            kl_tau=self.kl_tau,
        )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss inside the trust region  # [N]"""
        change = _change(tokens)
        up = (tokens.advantages > 0) & (change > self.dppo_mask_high)
        down = (tokens.advantages < 0) & (change < -self.dppo_mask_low)
        return _loss(tokens, up | down, change, self.adv_tau, self.kl_tau)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbabilityClipLoss:
    """-keep A r adv_tau + kl_tau (log r)²; keep = 0 where p - old p is above high or below -low, whatever A is.

    Source: prime-rl's loss of the type `ipo`, Prime Intellect 2026; IPO is a loss of preferences.
    """

    mask_low: float = 0.1
    mask_high: float = 0.1
    adv_tau: float = 1.0
    kl_tau: float = 1e-3

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(
            0,
            mask_low=self.mask_low,
            mask_high=self.mask_high,
            adv_tau=self.adv_tau,
            kl_tau=self.kl_tau,
        )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss inside the trust region  # [N]"""
        change = _change(tokens)
        masked = (change > self.mask_high) | (change < -self.mask_low)
        return _loss(tokens, masked, change, self.adv_tau, self.kl_tau)


def _change(tokens: LossTokens) -> Tensor:
    return tokens.logprobs.detach().exp() - tokens.old_logprobs.exp()


def _loss(tokens: LossTokens, masked: Tensor, change: Tensor, adv_tau: float, kl_tau: float) -> TokenLoss:
    log_ratio = tokens.log_ratio()
    policy = (-adv_tau * tokens.advantages * log_ratio.exp()).masked_fill(masked, 0.0)
    pull = (tokens.logprobs - tokens.old_logprobs).square()
    metrics = {
        "is_masked": masked.to(policy.dtype),
        "probability_change": change.abs(),
        "ppo_kl": -log_ratio.detach(),
    }
    return TokenLoss(loss=policy + kl_tau * pull, metrics=metrics)
