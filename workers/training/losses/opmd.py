"""`opmd`: the policy gradient without a ratio, damped."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class OpmdLoss:
    """-A logprob / (1 + tau): no old log-probabilities, so it takes tokens of any origin.

    Source: Pan et al. 2025, Trinity-RFT, arXiv 2505.17826, online policy mirror descent.
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        arguments.at_least(0, tau=self.tau)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The damped loss  # [N]"""
        loss = -tokens.advantages * tokens.logprobs / (1 + self.tau)
        return TokenLoss(loss=loss, metrics={"opmd_loss": loss.detach()})
