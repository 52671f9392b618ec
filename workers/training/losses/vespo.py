"""`vespo`: the policy gradient, softly weighted by the ratio of the whole response."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss

LOWEST: Final = math.log(1e-8)
"""A smaller ratio of a response counts as this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VespoLoss:
    """-A sg(phi(w)) logprob, where w is the product of the response's r, and phi(w) = w^k e^(lambda (1 - w)): 1 where w
    is 1, 0 far from it on either side, largest at k / lambda. k and lambda have a value for A >= 0 and one for A < 0.

    The product is taken as it is, not its geometric mean; what a hard clip cuts off fades here.
    Source: Shen et al. 2026, VESPO, arXiv 2602.10693; as TRL's loss type vespo.
    """

    k_pos: float = 2.0
    lambda_pos: float = 3.0
    k_neg: float = 3.0
    lambda_neg: float = 2.0

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(
            0, k_pos=self.k_pos, lambda_pos=self.lambda_pos, k_neg=self.k_neg, lambda_neg=self.lambda_neg
        )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The weighted policy gradient  # [N]"""
        log_ratio = tokens.log_ratio().detach()
        summed = log_ratio.new_zeros(tokens.sequences).index_add(0, tokens.sequence, log_ratio)
        log_w = summed.clamp(LOWEST, LOG_RATIO_LIMIT)[tokens.sequence]
        better = tokens.advantages >= 0
        k = log_w.new_tensor(self.k_pos).where(better, log_w.new_tensor(self.k_neg))
        decay = log_w.new_tensor(self.lambda_pos).where(better, log_w.new_tensor(self.lambda_neg))
        weight = (decay + k * log_w - decay * log_w.exp()).exp()
        loss = -tokens.advantages * weight * tokens.logprobs
        return TokenLoss(loss=loss, metrics={"ppo_kl": -log_ratio}, of_responses={"sequence_weight": weight})
