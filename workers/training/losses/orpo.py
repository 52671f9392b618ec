"""`orpo`: supervised fine-tuning on the chosen response, and its odds raised over those of the rejected one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from rftd.workers.training.losses import arguments, preferences
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

HIGHEST: Final = -1e-6
"""The odds of a probability of 1 are infinite: a mean logprob above this counts as this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrpoLoss:
    """The mean over pairs of -l + beta (-log s(z)), where l is the chosen response's mean logprob, z its log-odds minus
    those of the rejected one, the odds of a response P / (1 - P), and log P its mean logprob.

    Source: Hong et al. 2024, ORPO, arXiv 2403.07691, equations 6 and 7, whose lambda is beta.
    """

    beta: float = 0.1

    needs_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        arguments.at_least(0, beta=self.beta)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of each pair, spread evenly over its tokens and divided by the batch's pairs  # [N]"""
        pairs = preferences.pairs_of(tokens, "orpo")
        chosen, rejected = preferences.by_side(tokens, pairs, tokens.logprobs, mean=True)
        margin = _log_odds(chosen) - _log_odds(rejected)
        loss = self.beta * preferences.minus_log_sigmoid(margin) - chosen
        reported = preferences.figures("orpo", loss, chosen * self.beta, rejected * self.beta)
        return preferences.spread(tokens, pairs, loss, reported | {"sft_loss": -chosen, "log_odds_ratio": margin})


def _log_odds(logprobs: Tensor) -> Tensor:
    """log P - log(1 - P) of log P  # [pairs]"""
    bounded = logprobs.clamp(max=HIGHEST)
    return bounded - (-bounded.expm1()).log()
