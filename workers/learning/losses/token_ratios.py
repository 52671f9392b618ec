"""Losses with the gradient of each token's ratio r = e^(logprob - old logprob).

`ppo` clips the ratio, `sapo` fades it out, `dppo` and `probability_clip` mask tokens by the change of their
probability, `sppo` masks them by the ratio, and `importance_sampling` uses the ratio unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.workers.learning.losses import arguments
from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class PpoLoss:
    """The loss is max(-A r, -A clip(r, 1 - low, 1 + high)); where A < 0 it is at most -A c, so that no single token
    can dominate.

    Source: Schulman et al. 2017, arXiv 1707.06347; dual clip: Ye et al. 2020, arXiv 1912.09729.
    """

    clip_range: float = 0.2
    """Clip range of the ratio on both sides, unless a side has its own."""
    clip_range_low: float | None = None
    """Clip range below 1; None: `clip_range`."""
    clip_range_high: float | None = None
    """Clip range above 1; None: `clip_range`."""
    clip_ratio_c: float = 3.0
    """c of the dual clip: bound of the loss of a bad token, in multiples of -A."""
    enable_sequence_masking: bool = False
    """True: a response with A < 0 has no loss if it has drifted: mean(old logprob - logprob) above `delta`."""
    delta: float = 0.1
    """Mean of old logprob - logprob above which a response with A < 0 is masked, with `enable_sequence_masking`."""
    fallback_to_policy_gradient: bool = False
    """True: current log-probabilities replace the old ones. The ratio is 1, its gradient that of logprob."""

    def __post_init__(self) -> None:
        if self.low < 0 or self.high < 0:
            raise ConfigError(
                f"the clip range is [1 - {self.low}, 1 + {self.high}]",
                field="policy_loss_fn_args.clip_range",
                fix="use ranges of 0 or more",
            )
        if self.clip_ratio_c <= 1:
            raise ConfigError(
                f"clip_ratio_c is {self.clip_ratio_c}", field="policy_loss_fn_args.clip_ratio_c", fix="use one above 1"
            )
        arguments.at_least(0, delta=self.delta)

    @property
    def needs_old_logprobs(self) -> bool:
        """False if current log-probabilities replace the old ones."""
        return not self.fallback_to_policy_gradient

    @property
    def low(self) -> float:
        """Clip range below 1: ratios below 1 - low have no gradient where A < 0."""
        return self.clip_range if self.clip_range_low is None else self.clip_range_low

    @property
    def high(self) -> float:
        """Clip range above 1: ratios above 1 + high have no gradient where A > 0."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the dual-clipped loss of each token  # [N]"""
        advantages = tokens.advantages
        old = tokens.logprobs.detach() if self.fallback_to_policy_gradient else tokens.old_logprobs
        # Not tokens.log_ratio(): `old` may be the detached present here, and the difference still has a gradient.
        log_ratio = (tokens.logprobs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio = log_ratio.exp()
        plain = -advantages * ratio
        clipped = -advantages * ratio.clamp(1 - self.low, 1 + self.high)
        worse = plain.maximum(clipped)
        # Where A < 0 alone: for A > 0 the bound -A c lies below every other value and would take the gradient from all.
        bound = -advantages * self.clip_ratio_c
        negative = advantages < 0
        loss = worse.minimum(bound).where(negative, worse)
        metrics = {
            "pg_clipfrac": (clipped > plain).to(loss.dtype),
            "pg_clipfrac_lower": ((worse > bound) & negative).to(loss.dtype),
            "ppo_kl": -log_ratio.detach(),
        }
        of_responses = {}
        if self.enable_sequence_masking:
            drift = tokens.sequence_mean((old - tokens.logprobs).detach())
            masked = negative & (drift > self.delta)
            loss = loss.masked_fill(masked, 0.0)
            metrics["seq_mask/masked_tokens"] = masked.to(loss.dtype)
            of_responses["seq_mask/mean_sequence_kl"] = drift
        metrics["pg_loss"] = loss.detach()
        return TokenLoss(loss=loss, metrics=metrics, of_responses=of_responses)


@dataclass(frozen=True, kw_only=True, slots=True)
class SapoLoss:
    """The loss is -A g, with the gate g = 4/τ sigmoid(τ (r - 1)); τ is tau_pos where A > 0, else tau_neg.

    The gradient passes through the gate: a token has the weight r sech²(τ (r - 1) / 2), which is 1 at r = 1 and fades
    on both sides. `through_gate: false` selects Trinity-RFT's -A sg(g) logprob instead, whose weight never fades: it
    grows with the ratio, from 2/τ at r = 1 to 4/τ, so tokens that have drifted upwards are driven further.

    Source: Gao et al. 2025, Soft Adaptive Policy Optimization, arXiv 2511.20347.
    """

    tau_pos: float = 1.0
    """τ for A > 0."""
    tau_neg: float = 1.05
    """τ for other tokens."""
    through_gate: bool = True
    """True: the gate has a gradient. False: only logprob has one."""
    loss_agg_mode: str = "seq-mean-token-mean"
    """Aggregation of the token losses."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.above(0, tau_pos=self.tau_pos)
        # The larger τ, the faster the gate fades. A bad token's gradient raises every other token of the vocabulary, so
        # it must fade at least as fast as a good one's.
        arguments.at_least(self.tau_pos, tau_neg=self.tau_neg)
        arguments.mode(self.loss_agg_mode)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the gated loss of each token  # [N]"""
        advantages = tokens.advantages
        ratio = tokens.log_ratio().exp()
        positive = advantages > 0
        tau = ratio.new_full(ratio.shape, self.tau_neg).masked_fill(positive, self.tau_pos)
        gate = 4 / tau * (tau * (ratio - 1)).sigmoid()
        loss = -advantages * gate if self.through_gate else -advantages * gate.detach() * tokens.logprobs
        metrics = {
            "avg_soft_gate": gate.detach(),
            "avg_ratio": ratio.detach(),
            "pos_adv_frac": positive.to(loss.dtype),
        }
        return TokenLoss(loss=loss, metrics=metrics)


@dataclass(frozen=True, kw_only=True, slots=True)
class DppoLoss:
    """The loss is -keep A r adv_tau + kl_tau (log r)². Let Δ = p - old p: keep is 0 where A > 0 and Δ > high, and where
    A < 0 and Δ < -low.

    The trust region is one of probabilities, not of ratios: a rare token may change by a large ratio, a frequent one
    hardly at all.
    Source: prime-rl's default loss (total variation as trust region, and a KL term), Prime Intellect 2026.
    """

    dppo_mask_low: float = 0.2
    """Largest fall of a bad token's probability before the policy term becomes 0."""
    dppo_mask_high: float = 0.2
    """Largest rise of a good token's probability before the policy term becomes 0."""
    adv_tau: float = 1.0
    """Factor of the advantage."""
    kl_tau: float = 1e-3
    """Coefficient of (log r)²."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(
            0,
            dppo_mask_low=self.dppo_mask_low,
            dppo_mask_high=self.dppo_mask_high,
            adv_tau=self.adv_tau,
            kl_tau=self.kl_tau,
        )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token, its policy term 0 outside the trust region  # [N]"""
        change = _change(tokens)
        up = (tokens.advantages > 0) & (change > self.dppo_mask_high)
        down = (tokens.advantages < 0) & (change < -self.dppo_mask_low)
        return _pulled(tokens, up | down, change, self.adv_tau, self.kl_tau)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbabilityClipLoss:
    """The loss is -keep A r adv_tau + kl_tau (log r)²; keep is 0 where p - old p is above high or below -low, whatever
    the sign of A.

    Source: prime-rl's loss of the type `ipo`, Prime Intellect 2026; IPO is a loss of preferences.
    """

    mask_low: float = 0.1
    """Largest fall of a token's probability before the policy term becomes 0."""
    mask_high: float = 0.1
    """Largest rise of a token's probability before the policy term becomes 0."""
    adv_tau: float = 1.0
    """Factor of the advantage."""
    kl_tau: float = 1e-3
    """Coefficient of (log r)²."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(
            0,
            mask_low=self.mask_low,
            mask_high=self.mask_high,
            adv_tau=self.adv_tau,
            kl_tau=self.kl_tau,
        )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token, its policy term 0 outside the trust region  # [N]"""
        change = _change(tokens)
        masked = (change > self.mask_high) | (change < -self.mask_low)
        return _pulled(tokens, masked, change, self.adv_tau, self.kl_tau)


@dataclass(frozen=True, kw_only=True, slots=True)
class SppoLoss:
    """The loss is -A (logprob - old logprob) where 1 / (1 + epsilon) ≤ r ≤ 1 + epsilon, else 0.

    Source: Vaswani et al. 2021, functional mirror ascent (softmax PPO), arXiv 2108.05828.
    """

    epsilon: float = 0.3
    """Width of the ratio's range, 1 / (1 + epsilon) to 1 + epsilon."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(0, epsilon=self.epsilon)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token, 0 for a ratio out of range  # [N]"""
        log_ratio = tokens.log_ratio()
        ratio = log_ratio.detach().exp()
        inside = (ratio >= 1 / (1 + self.epsilon)) & (ratio <= 1 + self.epsilon)
        loss = (-tokens.advantages * log_ratio).masked_fill(~inside, 0.0)
        return TokenLoss(loss=loss, metrics={"in_range_frac": inside.to(loss.dtype), "ppo_kl": -log_ratio.detach()})


class ImportanceSamplingLoss:
    """The loss is -A r, with log r clamped to ±20. It is unbiased, but its variance grows with the policy's drift:
    prefer a bounded one.

    Source: Kakade and Langford 2002, Approximately Optimal Approximate Reinforcement Learning; as in Tinker's API.
    """

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns -A r of each token  # [N]"""
        log_ratio = tokens.log_ratio()
        loss = -tokens.advantages * log_ratio.exp()
        return TokenLoss(loss=loss, metrics={"ppo_kl": -log_ratio.detach()})


def _change(tokens: LossTokens) -> Tensor:
    """Returns the change of each token's probability since it was drawn, without a gradient  # [N]"""
    return tokens.logprobs.detach().exp() - tokens.old_logprobs.exp()


def _pulled(tokens: LossTokens, masked: Tensor, change: Tensor, adv_tau: float, kl_tau: float) -> TokenLoss:
    """Returns the masked policy term plus, for every token, masked or not, a pull towards the weights that drew it
    # [N]
    """
    log_ratio = tokens.log_ratio()
    policy = (-adv_tau * tokens.advantages * log_ratio.exp()).masked_fill(masked, 0.0)
    # Not the clamped log-ratio: its gradient is 0 beyond the clamp, where the pull back is needed most.
    pull = (tokens.logprobs - tokens.old_logprobs).square()
    metrics = {
        "is_masked": masked.to(policy.dtype),
        "probability_change": change.abs(),
        "ppo_kl": -log_ratio.detach(),
    }
    return TokenLoss(loss=policy + kl_tau * pull, metrics=metrics)
