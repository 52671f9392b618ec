"""`BatchTokens`: a complete batch before its first step, for values that depend on more than one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTokens:
    """The N trained tokens of a complete batch, response after response, without gradients.

    A field that the objective does not need is None, because each costs a forward pass over the batch.
    """

    old_logprobs: Tensor  # [N], under the weights that drew them; zeros for dataset rows
    advantages: Tensor  # [N], of the rollout's group, less the penalties
    rewards: Tensor  # [S], one for each response
    expert: Tensor  # [N] bool
    sequence: Tensor  # [N] int64, which response; ascending
    sequences: int
    """Number of responses."""
    versions: Tensor | None = None  # [N] int64, of the weights that drew each token
    version: int = 0
    """The version of the weights before the step."""
    logprobs: Tensor | None = None  # [N], under the weights before the step: "proximal"
    entropies: Tensor | None = None  # [N], likewise
    ref_logprobs: Tensor | None = None  # [N]
    teacher_logprobs: Tensor | None = None  # [N]
    entropy_signals: Tensor | None = None  # [N], the mean of p (H + log p) over what might be drawn, likewise
    squares: Tensor | None = None  # [N], the sum of the squares of all probabilities, likewise
    groups: Tensor | None = None  # [S] int64, of each response within the batch; -1 without one
    values: Tensor | None = None  # [N], the critic's
    penalties: Tensor | None = None  # [N], to be taken from each token's reward: kl_penalty_fn

    def sequence_sum(self, values: Tensor) -> Tensor:
        """Returns the sum of the values of each response  # [N] -> [S]"""
        # index_add on a GPU sums in any order; engines that promise bits run on a CPU, or with deterministic
        # algorithms.
        return values.new_zeros(self.sequences).index_add(0, self.sequence, values)

    def sequence_mean(self, values: Tensor) -> Tensor:
        """Returns the mean of the values of each response; 0 for a response without trained tokens  # [N] -> [S]"""
        # clamp: a response without a trained token has no tokens here, and its mean is 0 instead of NaN.
        return self.sequence_sum(values) / self.sequence_sum(values.new_ones(values.shape)).clamp(min=1)
