"""The common parts of preference losses: numbers of whole responses, and a loss for each pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError, TrainError
from rftd.workers.training.losses.policy_loss import Labels, LossTokens, Pairs, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor


def pairs_of(tokens: LossTokens, name: str) -> Pairs:
    """The pairs of these tokens. Raises TrainError if they have none."""
    if tokens.pairs is None:
        raise TrainError(
            f"{name} was given responses without pairs", fix="train it on a dataset of chosen and rejected responses"
        )
    return tokens.pairs


def labels_of(tokens: LossTokens, name: str) -> Labels:
    """The labels of these responses. Raises TrainError if they have none."""
    if tokens.labels is None:
        raise TrainError(
            f"{name} was given responses without labels",
            fix="train it on a dataset of labelled responses, or of chosen and rejected ones",
        )
    return tokens.labels


def log_ratio_to_reference(tokens: LossTokens, name: str) -> Tensor:
    """The log-ratio logprob - reference logprob  # [N]. Raises TrainError without a reference."""
    if tokens.ref_logprobs is None:
        raise TrainError(f"{name} was given responses without a reference", fix="give its log-probabilities too")
    return tokens.logprobs - tokens.ref_logprobs


def by_side(tokens: LossTokens, pairs: Pairs, values: Tensor, *, mean: bool = False) -> tuple[Tensor, Tensor]:
    """The sum, or the mean, over the trained tokens of the chosen and of the rejected response of each pair.

    # [N] -> [pairs], [pairs]
    """
    of_responses = by_response(tokens, values)
    if mean:
        of_responses = of_responses / _counts(tokens.sequence, of_responses)
    # The responses of each side in the order of their pairs: none of the batch is without a partner.
    return sides(pairs, of_responses)


def by_response(tokens: LossTokens, values: Tensor) -> Tensor:
    """The sum over the trained tokens of each response  # [N] -> [S]"""
    return values.new_zeros(tokens.sequences).index_add(0, tokens.sequence, values)


def sides(pairs: Pairs, of_responses: Tensor) -> tuple[Tensor, Tensor]:
    """The values of the chosen and of the rejected response of each pair  # [S] -> [pairs], [pairs]"""
    # Summed with masks, not gathered by index: sides are [pairs] in the order of `of`, wherever responses lie in the
    # batch.
    zeros = of_responses.new_zeros(pairs.count)
    chosen = zeros.index_add(0, pairs.of, of_responses.masked_fill(~pairs.chosen, 0.0))
    rejected = zeros.index_add(0, pairs.of, of_responses.masked_fill(pairs.chosen, 0.0))
    return chosen, rejected


def spread(tokens: LossTokens, pairs: Pairs, loss: Tensor, reported: Mapping[str, Tensor]) -> TokenLoss:
    """The loss of each pair, and what is reported of it, evenly over its tokens, divided by the batch's pairs."""
    return _spread(pairs.of[tokens.sequence], pairs.in_batch, loss, reported)


def spread_over_responses(
    tokens: LossTokens, labels: Labels, loss: Tensor, reported: Mapping[str, Tensor]
) -> TokenLoss:
    """The loss of each response, and what is reported of it, evenly over its tokens, divided by the batch's responses.

    # [S] -> [N]
    """
    return _spread(tokens.sequence, labels.in_batch, loss, reported)


def _spread(of_token: Tensor, in_batch: int, loss: Tensor, reported: Mapping[str, Tensor]) -> TokenLoss:
    # Divided by the pairs of the whole step, not of this micro-batch: then micro-batches add up to one mean.
    share = 1.0 / (_counts(of_token, loss.detach()) * max(1, in_batch))
    return TokenLoss(
        loss=(loss * share)[of_token],
        metrics={name: (value.detach() * share)[of_token] for name, value in reported.items()},
        summed=True,
    )


def figures(name: str, loss: Tensor, chosen_reward: Tensor, rejected_reward: Tensor) -> dict[str, Tensor]:
    """The figures that each of these losses reports of a pair, under the names of dpo  # each [pairs]"""
    right = (chosen_reward > rejected_reward).to(loss.dtype)
    return {
        f"{name}_loss": loss,
        "chosen_reward": chosen_reward,
        "rejected_reward": rejected_reward,
        "accuracy_mean": right,
    }


def minus_log_sigmoid(values: Tensor) -> Tensor:
    """The function log(1 + e^-x), exact at 0 and finite everywhere, gradients too."""
    # Not -log(sigmoid(x)): that is infinite from x = -104 on in float32, and its gradient NaN.
    return values.new_zeros(values.shape).logaddexp(-values)


def with_wrong_labels(margin: Tensor, label_smoothing: float) -> Tensor:
    """The logistic loss -(1 - e) log s(z) - e log s(-z), for a share e of pairs that are the wrong way round."""
    loss = minus_log_sigmoid(margin) * (1 - label_smoothing)
    # Without smoothing the second term is left out, not multiplied by 0: its gradient costs as much as the first.
    return loss + minus_log_sigmoid(-margin) * label_smoothing if label_smoothing else loss


def check_smoothing(label_smoothing: float) -> None:
    """Raises ConfigError for a share of wrong labels with which nothing could be learnt."""
    if not 0 <= label_smoothing < 0.5:
        raise ConfigError(
            f"label_smoothing is {label_smoothing}",
            field="policy_loss_fn_args.label_smoothing",
            fix="use 0 or more and less than 0.5: with half of the labels wrong there is nothing to learn",
        )


def _counts(places: Tensor, like: Tensor) -> Tensor:
    """The number of tokens that each of `like` has, at least 1."""
    return like.new_zeros(like.shape).index_add(0, places, like.new_ones(places.shape)).clamp(min=1)
