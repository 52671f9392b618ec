"""`PolicyLoss`: the main term of an objective, for each token."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.corrections.correction import Correction

LOG_RATIO_LIMIT: Final = 20.0
"""The bound of log-ratios on both sides, so that no ratio overflows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """The pairs of a micro-batch's S responses, chosen and rejected; each response has its partner there."""

    of: Tensor  # [S] int64, which pair
    chosen: Tensor  # [S] bool
    count: int
    in_batch: int
    """Pairs with trained tokens among all that the optimizer step sees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """The labels of a micro-batch's S responses, each by itself: of a pair the chosen one is desirable."""

    desirable: Tensor  # [S] bool
    in_batch: int
    """Responses with trained tokens among all that the optimizer step sees."""
    desirable_in_batch: int
    """The number of desirable ones among those."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossTokens:
    """The N trained tokens of some whole responses, one after the other: masked tokens are not among them."""

    logprobs: Tensor  # [N], with gradient
    entropies: Tensor | None  # [N], with gradient; None where the engine cannot give them
    old_logprobs: Tensor  # [N], under the weights that drew them, or the proximal ones; zeros for dataset rows
    ref_logprobs: Tensor | None  # [N]
    advantages: Tensor  # [N]
    expert: Tensor  # [N] bool
    sequence: Tensor  # [N] int64, which response
    sequences: int
    stage_step: int = 1
    """The number of the step that is trained; a stage's first is 1."""
    pairs: Pairs | None = None
    """The pairs; None where rows are no preferences."""
    labels: Labels | None = None
    """The labels; None where rows neither are preferences nor carry a label."""
    reference_kl: Tensor | None = None  # [], of responses to prompts that they do not answer; None: 0, or nobody asked
    versions: Tensor | None = None  # [N] int64, of the weights that drew each token
    version: int = 0
    """The version of the weights before the step."""
    start_logprobs: Tensor | None = None  # [N], before the batch's first optimizer step; None: `logprobs` are
    multiplier: Tensor | None = None  # [N], of corrections: the objective multiplies the loss with it
    keep: Tensor | None = None  # [N] bool, of corrections: elsewhere the objective takes no loss
    marked: Tensor | None = None  # [N] bool, of corrections: those that the loss treats apart

    def log_ratio(self) -> Tensor:
        """The log-ratio logprobs - old_logprobs, clamped to ±20  # [N]"""
        return (self.logprobs - self.old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def sequence_mean(self, values: Tensor) -> Tensor:
        """The mean over each token's own response  # [N] -> [N]"""
        zeros = values.new_zeros(self.sequences)
        sums = zeros.index_add(0, self.sequence, values)
        counts = zeros.index_add(0, self.sequence, values.new_ones(values.shape))
        # clamp: responses without trained tokens divide 0 by 1, for 0 / 0 would be NaN.
        return (sums / counts.clamp(min=1))[self.sequence]

    def corrected(self, loss: Tensor) -> Tensor:
        """A loss of each token with multiplier and mask  # [N] -> [N]"""
        if self.multiplier is not None:
            loss = loss * self.multiplier
        # where, not a product: 0 times an infinite loss is NaN.
        return loss if self.keep is None else loss.where(self.keep, loss.new_zeros(()))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoss:
    """A loss for each token, and what else to report for each token."""

    loss: Tensor  # [N]
    metrics: dict[str, Tensor]  # each [N], reported as the mean over the batch's trained tokens
    of_responses: dict[str, Tensor] = field(default_factory=dict)  # each [N]
    """Figures of whole responses, the same at each token of one: reported as the mean over the batch's responses."""
    by_kind: bool = False
    """True: an expert's rows and all others are aggregated, and reported, each on their own, and then added."""
    summed: bool = False
    """True: loss and metrics are weighted already, by the masks alone, and only added up, without `loss_agg_mode`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossNeeds:
    """The needs that a policy loss may state beside its formula, each with its default.

    A loss says so with an attribute or a property of the field's name, `needs_` before it where it is a bool.
    """

    old_logprobs: bool = False
    """The log-probability of each token under the weights that drew it; some algorithms need it anyhow."""
    reference: bool = False
    """A frozen copy of the policy of the stage's beginning."""
    reference_kl: bool = False
    """Responses to prompts that are not theirs, for an estimate of the KL to the reference (KTO)."""
    pairs: bool = False
    """True: it compares chosen and rejected responses to one prompt."""
    labels: bool = False
    """A label for each response, desirable or not: of pairs, or each by itself."""
    loss_agg_mode: str | None = None
    """The aggregation that it takes by default, in the place of the algorithm's."""
    expert_agg_mode: str | None = None
    """The mode of an expert's rows, if they are aggregated on their own."""
    corrections: tuple[Correction, ...] = ()
    """The corrections that it is defined by."""

    @classmethod
    def of(cls, loss: object) -> LossNeeds:
        """The stated needs of a loss, or of a class for all of its instances."""
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
    """A pure function of the tokens. It depends on whole responses at most, never on how they are batched.

    A class may also state the fields of `LossNeeds`.
    """

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss before aggregation  # [N]"""
        ...
