"""`ipo`: the margin between two responses is brought to one value, so that certain labels do not carry it away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rftd.workers.training.losses import arguments, preferences
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class IpoLoss:
    """The mean over pairs of (h - 1 / (2 beta))², where h is the chosen response's logprob - reference logprob minus
    the rejected one's, each summed over its tokens; with `per_token_mean` each is divided by its number of tokens, as
    TRL does, so that long responses are not held to the margin of short ones.

    Source: Azar et al. 2023, arXiv 2310.12036, equation 17, whose tau is beta; by tokens: TRL 1.16, loss type ipo.
    """

    beta: float = 0.1
    per_token_mean: bool = True

    needs_reference: ClassVar[bool] = True
    needs_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        arguments.above(0, beta=self.beta)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of each pair, spread evenly over its tokens and divided by the batch's pairs  # [N]"""
        pairs = preferences.pairs_of(tokens, "ipo")
        moved = preferences.log_ratio_to_reference(tokens, "ipo")
        chosen, rejected = preferences.by_side(tokens, pairs, moved, mean=self.per_token_mean)
        loss = (chosen - rejected - 1 / (2 * self.beta)).square()
        reported = preferences.figures("ipo", loss, chosen * self.beta, rejected * self.beta)
        return preferences.spread(tokens, pairs, loss, reported)
