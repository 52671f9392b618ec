"""`sft`: minus the log-likelihood."""

from __future__ import annotations

from rftd.workers.algorithms.policy_losses.policy_loss import LossTokens, TokenLoss


class SftLoss:
    """-logprob."""

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The negative log-likelihood  # [N]"""
        return TokenLoss(loss=-tokens.logprobs, metrics={"sft_loss": -tokens.logprobs.detach()})
