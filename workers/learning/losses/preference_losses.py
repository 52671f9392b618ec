"""Losses of preferences: `dpo`, `ipo`, `simpo` and `orpo` compare the two responses of a pair, `kto` judges each
response alone.

In the formulas s is the logistic function. Each loss is one number of a pair (for `kto` of a response), divided evenly
among its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from rftd.workers.learning.losses import arguments
from rftd.workers.learning.losses.policy_loss import Labels, LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError, TrainError
from rftd.workers.learning.losses.policy_loss import Pairs

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class DpoLoss:
    """The loss is the mean over pairs of -(1 - e) log s(z) - e log s(-z), where z is the chosen response's reward minus
    the rejected one's, a reward is beta times the sum of logprob - reference logprob, and e is `label_smoothing`: the
    assumed share of pairs with swapped labels.

    Source: Rafailov et al. 2023, arXiv 2305.18290; label smoothing: Mitchell 2023, conservative DPO.
    """

    beta: float = 0.1
    """Factor of the sum of logprob - reference logprob in a response's reward."""
    label_smoothing: float = 0.0
    """Assumed share of pairs with swapped labels."""

    needs_reference: ClassVar[bool] = True
    """True: the loss compares with the reference."""
    needs_pairs: ClassVar[bool] = True
    """True: the loss compares the two responses of a pair."""

    def __post_init__(self) -> None:
        arguments.above(0, beta=self.beta)
        check_smoothing(self.label_smoothing)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each pair, divided by the step's number of pairs and evenly among the pair's tokens
        # [N]
        """
        pairs = pairs_of(tokens, "dpo")
        moved = log_ratio_to_reference(tokens, "dpo") * self.beta
        chosen, rejected = by_side(tokens, pairs, moved)
        loss = with_wrong_labels(chosen - rejected, self.label_smoothing)
        return spread(tokens, pairs, loss, figures("dpo", loss, chosen, rejected))


@dataclass(frozen=True, kw_only=True, slots=True)
class IpoLoss:
    """The loss is the mean over pairs of (h - 1 / (2 beta))², where h is the chosen response's sum of logprob -
    reference logprob minus the rejected one's. With `per_token_mean` each sum is divided by its number of tokens, as in
    TRL, so that long responses need no larger margin than short ones.

    Source: Azar et al. 2023, arXiv 2310.12036, equation 17, whose tau is beta; by tokens: TRL 1.16, loss type ipo.
    """

    beta: float = 0.1
    """Strength of the tie to the reference: the margin of a pair is brought to 1 / (2 beta)."""
    per_token_mean: bool = True
    """True: sums are divided by the number of tokens."""

    needs_reference: ClassVar[bool] = True
    """True: the loss compares with the reference."""
    needs_pairs: ClassVar[bool] = True
    """True: the loss compares the two responses of a pair."""

    def __post_init__(self) -> None:
        arguments.above(0, beta=self.beta)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each pair, divided by the step's number of pairs and evenly among the pair's tokens
        # [N]
        """
        pairs = pairs_of(tokens, "ipo")
        moved = log_ratio_to_reference(tokens, "ipo")
        chosen, rejected = by_side(tokens, pairs, moved, mean=self.per_token_mean)
        # A square, not a logistic loss: the margin is brought to one value, and labels that always agree cannot drive
        # it on.
        loss = (chosen - rejected - 1 / (2 * self.beta)).square()
        reported = figures("ipo", loss, chosen * self.beta, rejected * self.beta)
        return spread(tokens, pairs, loss, reported)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimpoLoss:
    """The loss is the mean over pairs of -(1 - e) log s(z) - e log s(-z), where z is the chosen response's reward minus
    the rejected one's minus gamma, a reward is beta times the mean logprob over the response, and e is
    `label_smoothing` as in dpo. There is no reference.

    Source: Meng et al. 2024, SimPO, arXiv 2405.14734, equation 6; label smoothing as in the authors' code.
    """

    beta: float = 2.0
    """Factor of the mean logprob in a response's reward."""
    gamma: float = 1.0
    """The margin demanded between the rewards of chosen and rejected response."""
    label_smoothing: float = 0.0
    """Assumed share of pairs with swapped labels."""

    needs_pairs: ClassVar[bool] = True
    """True: the loss compares the two responses of a pair."""

    def __post_init__(self) -> None:
        arguments.above(0, beta=self.beta)
        arguments.at_least(0, gamma=self.gamma)
        check_smoothing(self.label_smoothing)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each pair, divided by the step's number of pairs and evenly among the pair's tokens
        # [N]
        """
        pairs = pairs_of(tokens, "simpo")
        chosen, rejected = by_side(tokens, pairs, tokens.logprobs * self.beta, mean=True)
        loss = with_wrong_labels(chosen - rejected - self.gamma, self.label_smoothing)
        return spread(tokens, pairs, loss, figures("simpo", loss, chosen, rejected))


HIGHEST: Final = -1e-6
"""The largest mean logprob used for odds: a probability of 1 would have infinite odds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrpoLoss:
    """The loss is the mean over pairs of -l - beta log s(z), where l is the chosen response's mean logprob, z is its
    log-odds minus the rejected one's, the odds of a response are P / (1 - P), and log P is its mean logprob.

    In effect: supervised fine-tuning on the chosen response, with its odds raised over those of the rejected one.

    Source: Hong et al. 2024, ORPO, arXiv 2403.07691, equations 6 and 7, whose lambda is beta.
    """

    beta: float = 0.1
    """Weight of the odds' term, beside the likelihood of the chosen response."""

    needs_pairs: ClassVar[bool] = True
    """True: the loss compares the two responses of a pair."""

    def __post_init__(self) -> None:
        arguments.at_least(0, beta=self.beta)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each pair, divided by the step's number of pairs and evenly among the pair's tokens
        # [N]
        """
        pairs = pairs_of(tokens, "orpo")
        chosen, rejected = by_side(tokens, pairs, tokens.logprobs, mean=True)
        margin = _log_odds(chosen) - _log_odds(rejected)
        loss = self.beta * minus_log_sigmoid(margin) - chosen
        reported = figures("orpo", loss, chosen * self.beta, rejected * self.beta)
        return spread(tokens, pairs, loss, reported | {"sft_loss": -chosen, "log_odds_ratio": margin})


def _log_odds(logprobs: Tensor) -> Tensor:
    """Returns log P - log(1 - P) from log P  # [pairs]"""
    bounded = logprobs.clamp(max=HIGHEST)
    # expm1, for 1 - P of a P near 1 has no digits left in float32.
    return bounded - (-bounded.expm1()).log()


@dataclass(frozen=True, kw_only=True, slots=True)
class KtoLoss:
    """The loss is the mean over responses: of desirable ones desirable_weight (1 - s(beta (m - z))), of others
    undesirable_weight (1 - s(beta (z - m))), where m is the sum of logprob - reference logprob.

    Rows with a label each (`schema_type: kto`) have one response, pairs two: the chosen one is desirable. With unequal
    numbers n of the two the paper wants desirable_weight n_desirable / (undesirable_weight n_undesirable) in [1, 4/3].

    z takes no gradient: the larger of 0 and the mean of m over the batch's responses, each after the prompt of another
    row, which estimates the KL to the reference. It is made before the batch's first step and costs one more forward
    pass of policy and reference; a batch of one prompt has 0.
    Source: Ethayarajh et al. 2024, KTO, arXiv 2402.01306, equations 7 and 8; as in TRL.
    """

    beta: float = 0.1
    """Factor of the distance between m and z, before the sigmoid."""
    desirable_weight: float = 1.0
    """Weight of desirable responses."""
    undesirable_weight: float = 1.0
    """Weight of undesirable responses."""

    needs_reference: ClassVar[bool] = True
    """True: the loss compares with the reference."""
    needs_labels: ClassVar[bool] = True
    """True: every response is desirable or not."""
    needs_reference_kl: ClassVar[bool] = True
    """True: the loss needs the KL to the reference, estimated by responses after the prompts of other rows."""

    def __post_init__(self) -> None:
        arguments.above(0, beta=self.beta)
        arguments.at_least(0, desirable_weight=self.desirable_weight, undesirable_weight=self.undesirable_weight)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each response, divided by the step's number of responses and evenly among its tokens
        # [N]
        """
        labels = labels_of(tokens, "kto")
        moved = log_ratio_to_reference(tokens, "kto") * self.beta
        reward = by_response(tokens, moved)  # [S]
        moved_at_all = reward.new_zeros(()) if tokens.reference_kl is None else tokens.reference_kl * self.beta
        # 1 - s(x) is s(-x): written so, it keeps its digits where s(x) is near 1.
        gain = self.desirable_weight * (moved_at_all - reward).sigmoid()
        pain = self.undesirable_weight * (reward - moved_at_all).sigmoid()
        loss = gain.where(labels.desirable, pain)
        reported = {"kto_loss": loss, "reference_kl": (moved_at_all / self.beta).expand_as(loss)}
        reported |= _rewards(labels, reward.detach())
        if tokens.pairs is not None:
            chosen, rejected = sides(tokens.pairs, reward.detach())
            reported["accuracy_mean"] = (chosen > rejected).to(loss.dtype)[tokens.pairs.of]
        return spread_over_responses(tokens, labels, loss, reported)


def _rewards(labels: Labels, reward: Tensor) -> dict[str, Tensor]:
    """Returns the rewards of desirable and of undesirable responses, scaled to be reported as means of each kind  # [S]
    -> [S] each
    """
    undesirable_in_batch = labels.in_batch - labels.desirable_in_batch
    kinds = (
        ("chosen_reward", labels.desirable, labels.desirable_in_batch),
        ("rejected_reward", ~labels.desirable, undesirable_in_batch),
    )
    # Figures are averaged over all responses of the batch; scaled so, that average is the mean over the kind alone.
    return {
        name: reward.masked_fill(~of_kind, 0.0) * (labels.in_batch / in_batch)
        for name, of_kind, in_batch in kinds
        if in_batch
    }


def pairs_of(tokens: LossTokens, name: str) -> Pairs:
    """Returns the tokens' pairs. Raises TrainError if there are none; `name` is the loss's."""
    if tokens.pairs is None:
        raise TrainError(
            f"{name} was given responses without pairs", fix="train it on a dataset of chosen and rejected responses"
        )
    return tokens.pairs


def labels_of(tokens: LossTokens, name: str) -> Labels:
    """Returns the responses' labels. Raises TrainError if there are none; `name` is the loss's."""
    if tokens.labels is None:
        raise TrainError(
            f"{name} was given responses without labels",
            fix="train it on a dataset of labelled responses, or of chosen and rejected ones",
        )
    return tokens.labels


def log_ratio_to_reference(tokens: LossTokens, name: str) -> Tensor:
    """Returns logprob - reference logprob  # [N]. Raises TrainError without a reference; `name` is the loss's."""
    if tokens.ref_logprobs is None:
        raise TrainError(f"{name} was given responses without a reference", fix="give its log-probabilities too")
    return tokens.logprobs - tokens.ref_logprobs


def by_side(tokens: LossTokens, pairs: Pairs, values: Tensor, *, mean: bool = False) -> tuple[Tensor, Tensor]:
    """Sums the values over the trained tokens of each pair's chosen and rejected response, or averages them if `mean`
    # [N] -> [pairs], [pairs]
    """
    of_responses = by_response(tokens, values)
    if mean:
        of_responses = of_responses / _counts(tokens.sequence, of_responses)
    # The responses of each side in the order of their pairs: none of the batch is without a partner.
    return sides(pairs, of_responses)


def by_response(tokens: LossTokens, values: Tensor) -> Tensor:
    """Sums the values over the trained tokens of each response  # [N] -> [S]"""
    return values.new_zeros(tokens.sequences).index_add(0, tokens.sequence, values)


def sides(pairs: Pairs, of_responses: Tensor) -> tuple[Tensor, Tensor]:
    """Splits values of responses into those of each pair's chosen and rejected response  # [S] -> [pairs], [pairs]"""
    # Summed with masks, not gathered by index: sides are [pairs] in the order of `of`, wherever responses lie in the
    # batch.
    zeros = of_responses.new_zeros(pairs.count)
    chosen = zeros.index_add(0, pairs.of, of_responses.masked_fill(~pairs.chosen, 0.0))
    rejected = zeros.index_add(0, pairs.of, of_responses.masked_fill(pairs.chosen, 0.0))
    return chosen, rejected


def spread(tokens: LossTokens, pairs: Pairs, loss: Tensor, reported: Mapping[str, Tensor]) -> TokenLoss:
    """Divides the loss and figures of each pair by the step's number of pairs, and evenly among the pair's tokens
    # [pairs] -> [N]
    """
    return _spread_over_tokens(pairs.of[tokens.sequence], pairs.in_batch, loss, reported)


def spread_over_responses(
    tokens: LossTokens, labels: Labels, loss: Tensor, reported: Mapping[str, Tensor]
) -> TokenLoss:
    """Divides the loss and figures of each response by the step's number of responses, and evenly among its tokens
    # [S] -> [N]
    """
    return _spread_over_tokens(tokens.sequence, labels.in_batch, loss, reported)


def _spread_over_tokens(of_token: Tensor, in_batch: int, loss: Tensor, reported: Mapping[str, Tensor]) -> TokenLoss:
    """Divides each loss, of a pair or a response, by the step's number of losses, and evenly among its tokens."""
    # Divided by the pairs of the whole step, not of this micro-batch: then micro-batches add up to one mean.
    share = 1.0 / (_counts(of_token, loss.detach()) * max(1, in_batch))
    return TokenLoss(
        loss=(loss * share)[of_token],
        metrics={name: (value.detach() * share)[of_token] for name, value in reported.items()},
        summed=True,
    )


def figures(name: str, loss: Tensor, chosen_reward: Tensor, rejected_reward: Tensor) -> dict[str, Tensor]:
    """Returns the figures of pairs for the loss named `name`, the same for each loss of pairs  # each [pairs]"""
    right = (chosen_reward > rejected_reward).to(loss.dtype)
    return {
        f"{name}_loss": loss,
        "chosen_reward": chosen_reward,
        "rejected_reward": rejected_reward,
        "accuracy_mean": right,
    }


def minus_log_sigmoid(values: Tensor) -> Tensor:
    """Returns log(1 + e^-x), with finite values and gradients everywhere."""
    # Not -log(sigmoid(x)): that is infinite from x = -104 on in float32, and its gradient NaN.
    return values.new_zeros(values.shape).logaddexp(-values)


def with_wrong_labels(margin: Tensor, label_smoothing: float) -> Tensor:
    """Returns -(1 - e) log s(z) - e log s(-z) of margins z, where e = `label_smoothing` is the assumed share of pairs
    with swapped labels.
    """
    loss = minus_log_sigmoid(margin) * (1 - label_smoothing)
    # Without smoothing the second term is left out, not multiplied by 0: its gradient costs as much as the first.
    return loss + minus_log_sigmoid(-margin) * label_smoothing if label_smoothing else loss


def check_smoothing(label_smoothing: float) -> None:
    """Raises ConfigError unless the assumed share of swapped labels is from 0 to below 0.5."""
    if not 0 <= label_smoothing < 0.5:
        raise ConfigError(
            f"label_smoothing is {label_smoothing}",
            field="policy_loss_fn_args.label_smoothing",
            fix="use 0 or more and less than 0.5: with half of the labels wrong there is nothing to learn",
        )


def _counts(places: Tensor, like: Tensor) -> Tensor:
    """Returns the number of tokens of each pair or response, at least 1; `like` has the shape of the counts."""
    return like.new_zeros(like.shape).index_add(0, places, like.new_ones(places.shape)).clamp(min=1)
