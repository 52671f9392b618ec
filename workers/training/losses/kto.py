"""`kto`: each response is a gain or a loss by itself, measured from how far the policy has moved at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rftd.workers.training.losses import arguments, preferences
from rftd.workers.training.losses.policy_loss import Labels, LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class KtoLoss:
    """The mean over responses: of desirable ones desirable_weight (1 - s(beta (m - z))), of others undesirable_weight
    (1 - s(beta (z - m))), where m is the sum of logprob - reference logprob, s the logistic function.

    Rows with a label each (`schema_type: kto`) have one response, pairs two: the chosen one is desirable. With unequal
    numbers n of the two the paper wants desirable_weight n_desirable / (undesirable_weight n_undesirable) in [1, 4/3].

    z takes no gradient: the larger of 0 and the mean of m over the batch's responses, each after the prompt of another
    row, which estimates the KL to the reference. It is made before the batch's first step and costs one more forward
    pass of policy and reference; a batch of one prompt has 0.
    Source: Ethayarajh et al. 2024, KTO, arXiv 2402.01306, equations 7 and 8; as in TRL.
    """

    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    needs_reference: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    needs_reference_kl: ClassVar[bool] = True

    def __post_init__(self) -> None:
        arguments.above(0, beta=self.beta)
        arguments.at_least(0, desirable_weight=self.desirable_weight, undesirable_weight=self.undesirable_weight)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of each response, spread evenly over its tokens and divided by the batch's responses  # [N]"""
        labels = preferences.labels_of(tokens, "kto")
        moved = preferences.log_ratio_to_reference(tokens, "kto") * self.beta
        reward = preferences.by_response(tokens, moved)  # [S]
        moved_at_all = reward.new_zeros(()) if tokens.reference_kl is None else tokens.reference_kl * self.beta
        gain = self.desirable_weight * (moved_at_all - reward).sigmoid()
        pain = self.undesirable_weight * (reward - moved_at_all).sigmoid()
        loss = gain.where(labels.desirable, pain)
        reported = {"kto_loss": loss, "reference_kl": (moved_at_all / self.beta).expand_as(loss)}
        reported |= _rewards(labels, reward.detach())
        if tokens.pairs is not None:
            chosen, rejected = preferences.sides(tokens.pairs, reward.detach())
            reported["accuracy_mean"] = (chosen > rejected).to(loss.dtype)[tokens.pairs.of]
        return preferences.spread_over_responses(tokens, labels, loss, reported)


def _rewards(labels: Labels, reward: Tensor) -> dict[str, Tensor]:
    """The reward of each kind of response, so that its mean over the batch's is that over the kind  # [S] each"""
    undesirable_in_batch = labels.in_batch - labels.desirable_in_batch
    kinds = (
        ("chosen_reward", labels.desirable, labels.desirable_in_batch),
        ("rejected_reward", ~labels.desirable, undesirable_in_batch),
    )
    return {
        name: reward.masked_fill(~of_kind, 0.0) * (labels.in_batch / in_batch)
        for name, of_kind, in_batch in kinds
        if in_batch
    }
