"""`topr`: good responses as they are, bad ones with a ratio of at most 1."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class ToprLoss:
    """-sg(α) A logprob; α = 1 where A > advantage_threshold, else clip(r, 0, 1).

    Source: Le Roux et al. 2025, Tapered Off-Policy REINFORCE, arXiv 2503.14286.
    """

    advantage_threshold: float = 0.0

    needs_old_logprobs = True

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The tapered loss  # [N]"""
        ratio = tokens.log_ratio().detach().exp()
        taper = ratio.clamp(0, 1).masked_fill(tokens.advantages > self.advantage_threshold, 1.0)
        return TokenLoss(loss=-taper * tokens.advantages * tokens.logprobs, metrics={"avg_taper": taper})
