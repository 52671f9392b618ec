"""`reinforce`: the policy gradient, weighted by a truncated ratio that has no gradient."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforceLoss:
    """-A sg(min(r, 1 + epsilon_high)) logprob: what old weights drew counts less, never more.

    Source: PipelineRL's default loss, Piché et al. 2025, arXiv 2509.19128.
    """

    epsilon_high: float = 0.02

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(0, epsilon_high=self.epsilon_high)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The weighted loss  # [N]"""
        log_ratio = tokens.log_ratio().detach()
        ratio = log_ratio.exp()
        weight = ratio.clamp(max=1 + self.epsilon_high)
        metrics = {"truncated_frac": (ratio > weight).to(ratio.dtype), "ppo_kl": -log_ratio}
        return TokenLoss(loss=-tokens.advantages * weight * tokens.logprobs, metrics=metrics)
