"""`simpo`: the mean log-probability of a response is its reward, without a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rftd.workers.training.losses import arguments, preferences
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class SimpoLoss:
    """The mean over pairs of -(1 - e) log s(z) - e log s(-z), where z is the chosen response's reward minus the
    rejected one's minus gamma, a reward beta times the mean logprob over the response, e `label_smoothing` as in dpo.

    Source: Meng et al. 2024, SimPO, arXiv 2405.14734, equation 6; label smoothing as in the authors' code.
    """

    beta: float = 2.0
    gamma: float = 1.0
    """The margin that a chosen response shall have."""
    label_smoothing: float = 0.0

    needs_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        arguments.above(0, beta=self.beta)
        arguments.at_least(0, gamma=self.gamma)
        preferences.check_smoothing(self.label_smoothing)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of each pair, spread evenly over its tokens and divided by the batch's pairs  # [N]"""
        pairs = preferences.pairs_of(tokens, "simpo")
        chosen, rejected = preferences.by_side(tokens, pairs, tokens.logprobs * self.beta, mean=True)
        loss = preferences.with_wrong_labels(chosen - rejected - self.gamma, self.label_smoothing)
        return preferences.spread(tokens, pairs, loss, preferences.figures("simpo", loss, chosen, rejected))
