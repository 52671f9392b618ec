"""`sppo`: the policy gradient of tokens whose ratio is near 1."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class SppoLoss:
    """-A (logprob - old logprob) where 1 / (1 + epsilon) ≤ r ≤ 1 + epsilon, else 0.

    Source: Vaswani et al. 2021, functional mirror ascent (softmax PPO), arXiv 2108.05828.
    """

    epsilon: float = 0.3

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(0, epsilon=self.epsilon)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of the tokens in range  # [N]"""
        log_ratio = tokens.log_ratio()
        ratio = log_ratio.detach().exp()
        inside = (ratio >= 1 / (1 + self.epsilon)) & (ratio <= 1 + self.epsilon)
        loss = (-tokens.advantages * log_ratio).masked_fill(~inside, 0.0)
        return TokenLoss(loss=loss, metrics={"in_range_frac": inside.to(loss.dtype), "ppo_kl": -log_ratio.detach()})
