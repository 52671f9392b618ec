"""`dpo`: the preferred one of two responses becomes more likely than the other, in relation to the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rftd.workers.training.losses import arguments, preferences
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class DpoLoss:
    """The mean over pairs of -(1 - e) log s(z) - e log s(-z), where z is the chosen response's reward minus the
    rejected one's, a reward beta times the sum of logprob - reference logprob, s the logistic function, e
    `label_smoothing`: the share of pairs whose labels are thought to be the wrong way round.

    Source: Rafailov et al. 2023, arXiv 2305.18290; label smoothing: Mitchell 2023, conservative DPO.
    """

    beta: float = 0.1
    label_smoothing: float = 0.0

    needs_reference: ClassVar[bool] = True
    needs_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        arguments.above(0, beta=self.beta)
        preferences.check_smoothing(self.label_smoothing)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of each pair, spread evenly over its tokens and divided by the batch's pairs  # [N]"""
        pairs = preferences.pairs_of(tokens, "dpo")
        moved = preferences.log_ratio_to_reference(tokens, "dpo") * self.beta
        chosen, rejected = preferences.by_side(tokens, pairs, moved)
        loss = preferences.with_wrong_labels(chosen - rejected, self.label_smoothing)
        return preferences.spread(tokens, pairs, loss, preferences.figures("dpo", loss, chosen, rejected))
