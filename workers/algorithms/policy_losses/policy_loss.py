"""`PolicyLoss`: the main term of an objective, for each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT: Final = 20.0
"""Log-ratios are clamped to it, so that no ratio overflows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Which of a micro-batch's S responses are preferred to which; each has a partner there."""

    of: Tensor  # [S] int64, which pair
    chosen: Tensor  # [S] bool
    count: int
    in_batch: int
    """Pairs of the whole batch that have trained tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossTokens:
    """The N trained tokens of some whole responses, one after the other: masked tokens are not among them."""

    logprobs: Tensor  # [N], with gradient
    entropies: Tensor  # [N], with gradient
    old_logprobs: Tensor  # [N], under the weights that drew them, or the proximal ones; zeros for dataset rows
    ref_logprobs: Tensor | None  # [N]
    advantages: Tensor  # [N]
    expert: Tensor  # [N] bool
    sequence: Tensor  # [N] int64, which response
    sequences: int
    stage_step: int = 1
    """Of the step that is trained; a stage's first is 1."""
    pairs: Pairs | None = None
    """None where rows are no preferences."""
    versions: Tensor | None = None  # [N] int64, of the weights that drew each token
    version: int = 0
    """Of the weights before the step."""
    multiplier: Tensor | None = None  # [N], of corrections: the objective multiplies the loss with it
    keep: Tensor | None = None  # [N] bool, of corrections: elsewhere the objective takes no loss

    def log_ratio(self) -> Tensor:
        """logprobs - old_logprobs, clamped to ±20  # [N]"""
        return (self.logprobs - self.old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def sequence_mean(self, values: Tensor) -> Tensor:
        """The mean over each token's own response  # [N] -> [N]"""
        zeros = values.new_zeros(self.sequences)
        sums = zeros.index_add(0, self.sequence, values)
        counts = zeros.index_add(0, self.sequence, values.new_ones(values.shape))
        return (sums / counts.clamp(min=1))[self.sequence]

    def corrected(self, loss: Tensor) -> Tensor:
        """A loss of each token with multiplier and mask  # [N] -> [N]"""
        if self.multiplier is not None:
            loss = loss * self.multiplier
        return loss if self.keep is None else loss.where(self.keep, loss.new_zeros(()))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoss:
    """A loss for each token, and what else to report for each token."""

    loss: Tensor  # [N]
    metrics: dict[str, Tensor]  # each [N], reported as the mean over the batch's trained tokens
    of_responses: dict[str, Tensor] = field(default_factory=dict)  # each [N]
    """Figures of whole responses, the same at each token of one: reported as the mean over the batch's responses."""
    by_kind: bool = False
    """Aggregates, and reports, an expert's rows and all others each on their own; the two are then added."""
    summed: bool = False
    """Loss and metrics are weighted already, as masks alone say, and only added up: `loss_agg_mode` is not asked."""


class PolicyLoss(Protocol):
    """A pure function of the tokens. It depends on whole responses at most, never on how they are batched.

    What a class may say beside: `needs_old_logprobs` (else as the algorithm says), `needs_reference`, `needs_pairs` (of
    chosen and rejected responses), `loss_agg_mode`, its default in the place of the algorithm's, the
    `corrections` that it is defined by, and `expert_agg_mode`, of an expert's rows if they are aggregated on their own.
    """

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss before aggregation  # [N]"""
        ...
