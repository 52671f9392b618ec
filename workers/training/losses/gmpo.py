"""`gmpo`: the geometric mean of a response's ratios, each of them clipped."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class GmpoLoss:
    """-A s, where log s is the mean over the response of log r, clipped at a token to at most high where A > 0, to at
    least -low where A < 0; A is the mean over the response.

    A single ratio weighs less in a geometric mean, so the clip is wide: e^-0.4 to e^0.4. Every token of a response has
    its loss. Source: Zhao et al. 2025, Geometric-Mean Policy Optimization, arXiv 2507.20673; as in verl.
    """

    clip_range_low: float = 0.4
    clip_range_high: float = 0.4
    loss_agg_mode: str = "seq-mean-token-mean"

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(0, clip_range_low=self.clip_range_low, clip_range_high=self.clip_range_high)
        arguments.mode(self.loss_agg_mode)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of the response of each token  # [N]"""
        log_ratio = tokens.log_ratio()
        clipped = log_ratio.clamp(-self.clip_range_low, self.clip_range_high)
        sign = tokens.advantages.sign()
        followed = sign * (sign * log_ratio).minimum(sign * clipped)
        mean = tokens.sequence_mean(followed).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        loss = -tokens.sequence_mean(tokens.advantages) * mean.exp()
        beyond = (followed != log_ratio) & (sign != 0)
        metrics = {"pg_clipfrac": beyond.to(loss.dtype), "ppo_kl": -log_ratio.detach()}
        return TokenLoss(loss=loss, metrics=metrics)
