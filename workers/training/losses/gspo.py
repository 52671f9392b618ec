"""`gspo`: PPO's clip on the ratio of whole responses."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class GspoLoss:
    """max(-A s, -A clip(s, 1 - low, 1 + high)), where log s is the mean of logprob - old logprob over the response.

    Every token of a response has its s, and the gradient of its own logprob. No dual clip.
    Source: Zheng et al. 2025, Group Sequence Policy Optimization, arXiv 2507.18071.
    """

    clip_range: float | None = None
    """In the place of both that follow."""
    clip_range_low: float = 0.0003
    clip_range_high: float = 0.0004
    loss_agg_mode: str = "seq-mean-token-mean"

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(
            0, clip_range=self.clip_range, clip_range_low=self.clip_range_low, clip_range_high=self.clip_range_high
        )
        arguments.mode(self.loss_agg_mode)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The clipped loss  # [N]"""
        low = self.clip_range_low if self.clip_range is None else self.clip_range
        high = self.clip_range_high if self.clip_range is None else self.clip_range
        drift = (tokens.logprobs - tokens.old_logprobs).detach()
        mean = tokens.sequence_mean(drift)
        own = tokens.logprobs - tokens.logprobs.detach()  # 0, with the gradient of the token
        ratio = (own + mean).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        plain = -tokens.advantages * ratio
        clipped = -tokens.advantages * ratio.clamp(1 - low, 1 + high)
        metrics = {"pg_clipfrac": (clipped > plain).to(plain.dtype), "ppo_kl": -drift}
        return TokenLoss(loss=plain.maximum(clipped), metrics=metrics, of_responses={"ppo_kl_seq": -mean})
