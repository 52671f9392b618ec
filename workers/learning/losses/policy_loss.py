"""`PolicyLoss`: the main term of an objective, computed for each token."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.corrections.correction import Correction

LOG_RATIO_LIMIT: Final = 20.0
"""Bound of log-ratios on both sides, so that no ratio overflows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Preference pairs among a micro-batch's S responses, chosen and rejected; both responses of a pair are in the
    micro-batch.
    """

    of: Tensor  # [S] int64, which pair
    chosen: Tensor  # [S] bool
    count: int
    """Number of pairs in the micro-batch."""
    in_batch: int
    """Number of pairs with trained tokens in the complete optimizer step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Labels of a micro-batch's S responses, desirable or not; of a pair the chosen response is desirable."""

    desirable: Tensor  # [S] bool
    in_batch: int
    """Number of responses with trained tokens in the complete optimizer step."""
    desirable_in_batch: int
    """Number of desirable responses among `in_batch`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossTokens:
    """The N trained tokens of complete responses, one response after the other; masked tokens are omitted."""

    logprobs: Tensor  # [N], with gradient
    entropies: Tensor | None  # [N], with gradient; None where the engine cannot give them
    old_logprobs: Tensor  # [N], under the weights that drew them, or the proximal ones; zeros for dataset rows
    ref_logprobs: Tensor | None  # [N]
    advantages: Tensor  # [N]
    expert: Tensor  # [N] bool
    sequence: Tensor  # [N] int64, which response
    sequences: int
    """Number of responses."""
    stage_step: int = 1
    """Number of the training step within its stage, from 1."""
    pairs: Pairs | None = None
    """Preference pairs; None for rows without preferences."""
    labels: Labels | None = None
    """Labels of responses; None for rows without preferences or labels."""
    reference_kl: Tensor | None = None  # [], of responses to prompts that they do not answer; None: 0, or nobody asked
    versions: Tensor | None = None  # [N] int64, of the weights that drew each token
    version: int = 0
    """The version of the weights before the step."""
    start_logprobs: Tensor | None = None  # [N], before the batch's first optimizer step; None: `logprobs` are
    multiplier: Tensor | None = None  # [N], of corrections: the objective multiplies the loss with it
    keep: Tensor | None = None  # [N] bool, of corrections: elsewhere the objective takes no loss
    marked: Tensor | None = None  # [N] bool, of corrections: those that the loss treats apart

    def log_ratio(self) -> Tensor:
        """Returns logprobs - old_logprobs, clamped to ±20  # [N]"""
        return (self.logprobs - self.old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def sequence_mean(self, values: Tensor) -> Tensor:
        """Returns, for each token, the mean of the values over its response  # [N] -> [N]"""
        zeros = values.new_zeros(self.sequences)
        sums = zeros.index_add(0, self.sequence, values)
        counts = zeros.index_add(0, self.sequence, values.new_ones(values.shape))
        # clamp: responses without trained tokens divide 0 by 1, for 0 / 0 would be NaN.
        return (sums / counts.clamp(min=1))[self.sequence]

    def corrected(self, loss: Tensor) -> Tensor:
        """Applies the corrections' multiplier and mask to a loss  # [N] -> [N]"""
        if self.multiplier is not None:
            loss = loss * self.multiplier
        # where, not a product: 0 times an infinite loss is NaN.
        return loss if self.keep is None else loss.where(self.keep, loss.new_zeros(()))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoss:
    """The loss of each token, and figures to report."""

    loss: Tensor  # [N]
    metrics: dict[str, Tensor]  # each [N], reported as the mean over the batch's trained tokens
    of_responses: dict[str, Tensor] = field(default_factory=dict)  # each [N]
    """Figures of complete responses, repeated at each of their tokens: reported as the mean over the batch's
    responses.
    """
    by_kind: bool = False
    """True: an expert's rows and all other rows are aggregated and reported separately, and then added."""
    summed: bool = False
    """True: loss and metrics are already weighted, and only added up, without `loss_agg_mode`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossNeeds:
    """What a policy loss needs besides its tokens, each with a default.

    A loss declares a need by an attribute or property of the field's name, prefixed by `needs_` for a bool.
    """

    old_logprobs: bool = False
    """The log-probability of each token under the weights that drew it; some algorithms need it in any case."""
    reference: bool = False
    """Log-probabilities under a frozen copy of the policy from the beginning of the stage."""
    reference_kl: bool = False
    """An estimate of the KL to the reference by responses placed after prompts of other samples (KTO)."""
    pairs: bool = False
    """Pairs of a chosen and a rejected response to one prompt."""
    observations: bool = False
    """Tokens written by the environment between the turns of a response, as tokens of the expert's kind."""
    labels: bool = False
    """A label for each response, desirable or not: of pairs, or each by itself."""
    loss_agg_mode: str | None = None
    """The aggregation used by default, instead of the algorithm's."""
    expert_agg_mode: str | None = None
    """The aggregation of an expert's rows, if separate."""
    corrections: tuple[Correction, ...] = ()
    """Corrections that belong to the loss's definition."""

    @classmethod
    def of(cls, loss: object) -> LossNeeds:
        """Reads the needs declared by a loss, or by a loss's class if independent of its arguments."""
        stated: dict[str, Any] = {}
        for need in fields(cls):
            name = f"needs_{need.name}" if need.type == "bool" else need.name
            value = getattr(loss, name, need.default)
            # A property read from a class is the property object: only plain class attributes are told apart by being
            # bools.
            if not (isinstance(loss, type) and not isinstance(value, bool)):
                stated[need.name] = value
        return cls(**stated)


class PolicyLoss(Protocol):
    """A pure function of the tokens. A token's loss depends at most on its complete response, never on the batch or
    micro-batches.

    A class may also declare the fields of `LossNeeds`.
    """

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token before aggregation  # [N]"""
        ...
