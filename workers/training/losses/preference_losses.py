"""Losses of preferences: `dpo`, `ipo`, `simpo` and `orpo` compare the two responses of a pair, `kto` judges each
response by itself.

In the formulas s is the logistic function. Each loss is that of a pair (of a response, for `kto`), spread evenly over
its tokens; `preferences` has what they share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from rftd.workers.training.losses import arguments, preferences
from rftd.workers.training.losses.policy_loss import Labels, LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class DpoLoss:
    """The loss is the mean over pairs of -(1 - e) log s(z) - e log s(-z), where z is the chosen response's reward minus
    the rejected one's, a reward beta times the sum of logprob - reference logprob, and e is `label_smoothing`: the
    share of pairs whose labels are thought to be the wrong way round.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class IpoLoss:
    """The loss is the mean over pairs of (h - 1 / (2 beta))², where h is the chosen response's logprob - reference
    logprob minus the rejected one's, each summed over its tokens. With `per_token_mean` each is divided by its number
    of tokens, as TRL does, so that long responses are not held to the margin of short ones.

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
        # A square, not a logistic loss: the margin is brought to one value, and labels that always agree cannot drive
        # it on.
        loss = (chosen - rejected - 1 / (2 * self.beta)).square()
        reported = preferences.figures("ipo", loss, chosen * self.beta, rejected * self.beta)
        return preferences.spread(tokens, pairs, loss, reported)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimpoLoss:
    """The loss is the mean over pairs of -(1 - e) log s(z) - e log s(-z), where z is the chosen response's reward minus
    the rejected one's minus gamma, a reward beta times the mean logprob over the response, and e is `label_smoothing`
    as in dpo. There is no reference.

    Source: Meng et al. 2024, SimPO, arXiv 2405.14734, equation 6; label smoothing as in the authors' code.
    """

    beta: float = 2.0
    gamma: float = 1.0
    """The margin that the chosen response's reward shall have."""
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


HIGHEST: Final = -1e-6
"""The largest mean logprob of which odds are taken: those of a probability of 1 are infinite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrpoLoss:
    """The loss is the mean over pairs of -l + beta (-log s(z)), where l is the chosen response's mean logprob, z its
    log-odds minus those of the rejected one, the odds of a response P / (1 - P), and log P its mean logprob.

    So it is supervised fine-tuning on the chosen response, whose odds are raised over those of the rejected one.
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
    """The log-odds log P - log(1 - P) of log P  # [pairs]"""
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
        # 1 - s(x) is s(-x): written so, it keeps its digits where s(x) is near 1.
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
    """The reward of each kind of response  # [S] -> [S] each"""
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
