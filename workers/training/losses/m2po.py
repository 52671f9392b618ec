"""`m2po`: the ratio without a clip, of tokens that the mini-batch's second moment leaves."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.corrections.correction import Correction
from rftd.workers.training.corrections.rejection import M2po
from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class M2poLoss:
    """-A r, log r clamped to ±log_ratio_clip. The step's mask takes away the tokens of the largest (log r)².

    That mask is made before each optimizer step from all of its tokens, by the weights before it: of the tokens that
    move away from the weights that drew them, those of the largest (log r)² go until the mean of the others is at most
    m2_threshold. The authors' code, and AReaL's, makes it for each micro-batch by itself.
    Source: Zheng et al. 2025, Prosperity before Collapse (M2PO), arXiv 2510.01161.
    """

    m2_threshold: float = 0.04
    log_ratio_clip: float = LOG_RATIO_LIMIT

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(0, m2_threshold=self.m2_threshold)
        arguments.above(0, log_ratio_clip=self.log_ratio_clip)

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """The mask."""
        return (M2po(threshold=self.m2_threshold),)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of every token, masked ones too  # [N]"""
        log_ratio = (tokens.logprobs - tokens.old_logprobs).clamp(-self.log_ratio_clip, self.log_ratio_clip)
        return TokenLoss(loss=-tokens.advantages * log_ratio.exp(), metrics={"ppo_kl": -log_ratio.detach()})
