"""The optimal token baseline: a token's return less a baseline for its position in the responses of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.workers.learning.algorithms.advantages.none import NoAdvantage
from rftd.workers.learning.token_advantages.token_advantage import PassField
from rftd.workers.learning.token_advantages.token_rows import discounted, places, token_rewards

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.losses.batch_tokens import BatchTokens

_EPSILON = 1e-8
"""Small addend to the sum of weights, against division by zero."""


@dataclass(frozen=True, kw_only=True)
class OptimalTokenBaselineAdvantage(NoAdvantage):
    """The advantage is R_t - B_t, where B_t = sum of R_t W_t / sum of W_t over the group's responses that reach t, and
    W_t is the sum over the positions up to t of 1 - 2 p + the sum of the squares of all probabilities.

    R_t is the reward less the KL penalties from t on. A position reached by a single response has no baseline.
    Positions count trained tokens only, and a group is its responses in the batch.

    Source: verl's `optimal_token_baseline`, and `tir_optimal_token_baseline` for several turns.
    """

    @property
    def needs(self) -> frozenset[PassField]:
        """The fields needed of the batch: log-probabilities and sums of squared probabilities under the weights before
        the step.
        """
        return frozenset({"logprobs", "squares"})

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns each token's return less the baseline of its position  # [N]"""
        assert batch.logprobs is not None and batch.squares is not None, "no log-probabilities and squares were given"
        assert batch.groups is not None, "the groups of the responses were not given"
        where, width = places(batch)
        returns = discounted(batch, token_rewards(batch), 1.0)
        # float64: the path of a long response is a sum of thousands of terms.
        energies = 1 - 2 * batch.logprobs.double().exp() + batch.squares.double()
        rows = energies.new_zeros(batch.sequences * width).index_add(0, where, energies)
        paths = rows.view(batch.sequences, width).cumsum(1).view(-1)[where]
        group = batch.groups[batch.sequence] + 1  # [N], 0 without one
        cell = group * width + where - batch.sequence * width
        cells = (int(group.max()) + 1) * width if len(group) else 0

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros(cells).index_add(0, cell, values)[cell]

        baseline = summed(returns * paths) / (summed(paths) + _EPSILON)
        alone = summed(paths.new_ones(paths.shape)) < 2
        baseline = baseline.masked_fill(alone | (group == 0), 0.0)
        return (returns - baseline).to(returns.dtype)
