"""`importance_sampling`: the ratio without a clip."""

from __future__ import annotations

from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


class ImportanceSamplingLoss:
    """-A r, with log r clamped to ±20. Unbiased; its variance grows with the policy's drift: prefer a bounded one.

    Source: Kakade and Langford 2002, Approximately Optimal Approximate Reinforcement Learning; as in Tinker's API.
    """

    needs_old_logprobs = True

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss  # [N]"""
        log_ratio = tokens.log_ratio()
        loss = -tokens.advantages * log_ratio.exp()
        return TokenLoss(loss=loss, metrics={"ppo_kl": -log_ratio.detach()})
