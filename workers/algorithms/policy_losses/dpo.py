"""`dpo`: the preferred one of two responses becomes more likely than the other, in relation to the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rftd.ops.errors import ConfigError, TrainError
from rftd.workers.algorithms.policy_losses.policy_loss import LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor


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
        if not self.beta > 0:
            raise ConfigError(f"beta is {self.beta}", field="policy_loss_fn_args.beta", fix="use one above 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError(
                f"label_smoothing is {self.label_smoothing}",
                field="policy_loss_fn_args.label_smoothing",
                fix="use 0 or more and less than 0.5: with half of the labels wrong there is nothing to learn",
            )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of each pair, spread evenly over its tokens and divided by the batch's pairs  # [N]"""
        pairs = tokens.pairs
        if pairs is None or tokens.ref_logprobs is None:
            raise TrainError(
                "dpo was given responses without pairs or without a reference",
                fix="train it on a dataset of chosen and rejected responses",
            )
        moved = (tokens.logprobs - tokens.ref_logprobs) * self.beta
        rewards = moved.new_zeros(tokens.sequences).index_add(0, tokens.sequence, moved)  # [S]
        # The rows of both kinds in the order of their pairs: no row of the batch is without a partner.
        chosen = rewards.new_zeros(pairs.count).index_add(0, pairs.of, rewards.masked_fill(~pairs.chosen, 0.0))
        rejected = rewards.new_zeros(pairs.count).index_add(0, pairs.of, rewards.masked_fill(pairs.chosen, 0.0))
        margin = chosen - rejected  # [pairs]
        loss = _minus_log_sigmoid(margin) * (1 - self.label_smoothing)
        if self.label_smoothing:
            loss = loss + _minus_log_sigmoid(-margin) * self.label_smoothing
        of_token = pairs.of[tokens.sequence]  # [N]
        counts = margin.detach().new_zeros(pairs.count).index_add(0, of_token, moved.detach().new_ones(moved.shape))
        share = 1.0 / (counts.clamp(min=1) * pairs.in_batch)

        def spread(of_pair: Tensor) -> Tensor:
            return (of_pair * share)[of_token]

        reported = {
            "dpo_loss": loss,
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "accuracy_mean": (margin > 0).to(margin.dtype),
        }
        metrics = {name: spread(value.detach()) for name, value in reported.items()}
        return TokenLoss(loss=spread(loss), metrics=metrics, summed=True)


def _minus_log_sigmoid(values: Tensor) -> Tensor:
    """log(1 + e^-x), exact at 0 and finite everywhere, gradients too."""
    return values.new_zeros(values.shape).logaddexp(-values)
