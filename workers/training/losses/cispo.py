"""`cispo`: the policy gradient, weighted by a clipped ratio that has no gradient."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class CispoLoss:
    """-A sg(clip(r, 1 - low, 1 + high)) logprob: a clipped token still learns, with a bounded weight.

    Source: MiniMax 2025, MiniMax-M1, arXiv 2506.13585.
    """

    clip_range_low: float = 1.0
    clip_range_high: float = 0.28
    enable_mask_clip: bool = False
    """No loss from tokens that PPO would clip: A > 0 and r > 1 + mask high, or A < 0 and r < 1 - mask low."""
    mask_clip_range_low: float = 1.0
    mask_clip_range_high: float = 0.28

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(
            0,
            clip_range_low=self.clip_range_low,
            clip_range_high=self.clip_range_high,
            mask_clip_range_low=self.mask_clip_range_low,
            mask_clip_range_high=self.mask_clip_range_high,
        )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The weighted loss  # [N]"""
        advantages = tokens.advantages
        log_ratio = tokens.log_ratio().detach()
        ratio = log_ratio.exp()
        loss = -advantages * ratio.clamp(1 - self.clip_range_low, 1 + self.clip_range_high) * tokens.logprobs
        metrics = {"ppo_kl": -log_ratio}
        if self.enable_mask_clip:
            masked = (advantages > 0) & (ratio > 1 + self.mask_clip_range_high)
            masked |= (advantages < 0) & (ratio < 1 - self.mask_clip_range_low)
            loss = loss.masked_fill(masked, 0.0)
            metrics["unmasked_frac"] = (~masked).to(loss.dtype)
        return TokenLoss(loss=loss, metrics=metrics | {"cispo_loss": loss.detach()})
