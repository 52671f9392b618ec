"""`sapo`: a soft gate in the place of PPO's clip."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class SapoLoss:
    """-A g, with the gate g = 4/τ sigmoid(τ (r - 1)); τ = tau_pos where A > 0, else tau_neg.

    The gradient goes through the gate: a token weighs r sech²(τ (r - 1) / 2), which is 1 at r = 1 and fades on both
    sides. `through_gate: false` takes Trinity-RFT's -A sg(g) logprob instead, whose weight never fades: it grows with
    the ratio, from 2/τ at r = 1 to 4/τ, so tokens that have drifted upwards are driven further.
    Source: Gao et al. 2025, Soft Adaptive Policy Optimization, arXiv 2511.20347.
    """

    tau_pos: float = 1.0
    tau_neg: float = 1.05
    through_gate: bool = True
    """The gradient goes through the gate."""
    loss_agg_mode: str = "seq-mean-token-mean"

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.above(0, tau_pos=self.tau_pos)
        arguments.at_least(self.tau_pos, tau_neg=self.tau_neg)
        arguments.mode(self.loss_agg_mode)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The gated loss  # [N]"""
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
