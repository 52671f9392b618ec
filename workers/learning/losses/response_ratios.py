"""Losses of the ratio of a complete response: `gspo` and `gmpo` take the geometric mean of its tokens' ratios, `vespo`
takes their product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rftd.workers.learning.losses import arguments
from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class GspoLoss:
    """The loss is max(-A s, -A clip(s, 1 - low, 1 + high)), where log s is the mean of logprob - old logprob over the
    response.

    All tokens of a response have the same s, and each has the gradient of its logprob. There is no dual clip.

    Source: Zheng et al. 2025, Group Sequence Policy Optimization, arXiv 2507.18071.
    """

    clip_range: float | None = None
    """Clip range on both sides of 1; None: `clip_range_low` and `clip_range_high`."""
    clip_range_low: float = 0.0003
    """Clip range below 1."""
    clip_range_high: float = 0.0004
    """Clip range above 1."""
    loss_agg_mode: str = "seq-mean-token-mean"
    """Aggregation of the token losses."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(
            0, clip_range=self.clip_range, clip_range_low=self.clip_range_low, clip_range_high=self.clip_range_high
        )
        arguments.mode(self.loss_agg_mode)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the clipped loss of each token, by its response's ratio  # [N]"""
        low = self.clip_range_low if self.clip_range is None else self.clip_range
        high = self.clip_range_high if self.clip_range is None else self.clip_range
        drift = (tokens.logprobs - tokens.old_logprobs).detach()
        mean = tokens.sequence_mean(drift)
        # `own` is 0 and has the gradient of logprob: e^(own + mean) is the paper's sg(s) p / sg(p) (GSPO-token).
        own = tokens.logprobs - tokens.logprobs.detach()
        ratio = (own + mean).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        plain = -tokens.advantages * ratio
        clipped = -tokens.advantages * ratio.clamp(1 - low, 1 + high)
        metrics = {"pg_clipfrac": (clipped > plain).to(plain.dtype), "ppo_kl": -drift}
        return TokenLoss(loss=plain.maximum(clipped), metrics=metrics, of_responses={"ppo_kl_seq": -mean})


@dataclass(frozen=True, kw_only=True, slots=True)
class GmpoLoss:
    """The loss is -A s, where log s is the mean over the response of log r, with log r clipped at each token to at most
    high where A > 0, and to at least -low where A < 0; A is the mean over the response.

    A single ratio weighs less in a geometric mean, so the clip is wide: e^-0.4 to e^0.4. Every token of a response has
    the loss of the response.

    Source: Zhao et al. 2025, Geometric-Mean Policy Optimization, arXiv 2507.20673; as in verl.
    """

    clip_range_low: float = 0.4
    """Clip range below 1."""
    clip_range_high: float = 0.4
    """Clip range above 1."""
    loss_agg_mode: str = "seq-mean-token-mean"
    """Aggregation of the token losses."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(0, clip_range_low=self.clip_range_low, clip_range_high=self.clip_range_high)
        arguments.mode(self.loss_agg_mode)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token: its response's  # [N]"""
        log_ratio = tokens.log_ratio()
        clipped = log_ratio.clamp(-self.clip_range_low, self.clip_range_high)
        sign = tokens.advantages.sign()
        # sign min(sign x, sign y) is min(x, y) where A > 0 and max(x, y) where A < 0: the pessimistic side of each
        # token.
        followed = sign * (sign * log_ratio).minimum(sign * clipped)
        mean = tokens.sequence_mean(followed).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        loss = -tokens.sequence_mean(tokens.advantages) * mean.exp()
        beyond = (followed != log_ratio) & (sign != 0)
        metrics = {"pg_clipfrac": beyond.to(loss.dtype), "ppo_kl": -log_ratio.detach()}
        return TokenLoss(loss=loss, metrics=metrics)


LOWEST: Final = math.log(1e-8)
"""The smallest log-ratio of a response: smaller ones are raised to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VespoLoss:
    """The loss is -A sg(phi(w)) logprob, where w is the product of the response's r, and phi(w) = w^k e^(lambda (1 -
    w)).

    phi is 1 at w = 1, falls to 0 far from it on either side, and is largest at k / lambda. k and lambda have a value
    for A >= 0 and one for A < 0. The product is not normalised by length; instead of a hard clip, its influence fades.

    Source: Shen et al. 2026, VESPO, arXiv 2602.10693; as TRL's loss type vespo.
    """

    k_pos: float = 2.0
    """k for A >= 0."""
    lambda_pos: float = 3.0
    """lambda for A >= 0."""
    k_neg: float = 3.0
    """k for A < 0."""
    lambda_neg: float = 2.0
    """lambda for A < 0."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(
            0, k_pos=self.k_pos, lambda_pos=self.lambda_pos, k_neg=self.k_neg, lambda_neg=self.lambda_neg
        )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token, weighted by its response's ratio  # [N]"""
        log_ratio = tokens.log_ratio().detach()
        summed = log_ratio.new_zeros(tokens.sequences).index_add(0, tokens.sequence, log_ratio)
        log_w = summed.clamp(LOWEST, LOG_RATIO_LIMIT)[tokens.sequence]
        better = tokens.advantages >= 0
        k = log_w.new_tensor(self.k_pos).where(better, log_w.new_tensor(self.k_neg))
        decay = log_w.new_tensor(self.lambda_pos).where(better, log_w.new_tensor(self.lambda_neg))
        # All of phi in one exponent: w^k alone overflows float32 for a large k, and infinity times e^(-lambda w) = 0 is
        # NaN.
        weight = (decay + k * log_w - decay * log_w.exp()).exp()
        loss = -tokens.advantages * weight * tokens.logprobs
        return TokenLoss(loss=loss, metrics={"ppo_kl": -log_ratio}, of_responses={"sequence_weight": weight})
