"""`Correction`: the interface of multipliers and masks for tokens drawn by other weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor


Scope = Literal["response", "mini_batch", "batch"]
"""The tokens on which the result for one token depends: its response; all tokens of its optimizer step, with the
weights before that step; or the complete batch, with the weights before its first step.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """The N trained tokens to correct, of complete responses, without gradients.

    w = proximal probability / probability under the weights that drew the token. "Proximal" weights are those that the
    correction compares with: usually those before the step.
    """

    proximal: Tensor  # [N], log-probabilities
    rollout: Tensor  # [N], log-probabilities
    log_ratio: Tensor  # [N], log w within ±20
    advantages: Tensor  # [N]
    sequence: Tensor  # [N] int64, which response
    sequences: int
    """Number of responses."""

    def of_sequences(self, values: Tensor) -> Tensor:
        """Returns, for each token, the sum of the values over its response  # [N] -> [N]"""
        return values.new_zeros(self.sequences).index_add(0, self.sequence, values)[self.sequence]

    def mean_of_sequences(self, values: Tensor) -> Tensor:
        """Returns, for each token, the mean of the values over its response  # [N] -> [N]"""
        return self.of_sequences(values) / self.of_sequences(values.new_ones(values.shape))

    def max_of_sequences(self, values: Tensor) -> Tensor:
        """Returns, for each token, the largest value of its response; values must not be negative  # [N] -> [N]"""
        # From zeros: amax would take them for values, which is why only values of 0 or more have a maximum here.
        return values.new_zeros(self.sequences).scatter_reduce(0, self.sequence, values, "amax")[self.sequence]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrected:
    """The result of corrections for each token: a multiplier of its loss, False in `keep` for no loss, a mark read by
    the loss. None: no change.
    """

    multiplier: Tensor | None = None  # [N]
    keep: Tensor | None = None  # [N] bool
    marked: Tensor | None = None  # [N] bool


class Correction(Protocol):
    """A pure function of tokens: decides which of them count, and with which weight."""

    @property
    def scope(self) -> Scope:
        """The tokens of one call. A scope above `response` costs a forward pass before each step (`mini_batch`) or
        before the batch (`batch`).
        """
        ...

    @property
    def weighs(self) -> bool:
        """True for a correction with a multiplier, which must not be combined with a loss that contains the same
        ratio.
        """
        ...

    def correct(self, tokens: Mismatch) -> Corrected:
        """Returns multiplier, mask and marks of the tokens, each [N] or None."""
        ...
