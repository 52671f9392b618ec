"""`Correction`: a multiplier and a mask for tokens drawn by other weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor


Scope = Literal["response", "mini_batch", "batch"]
"""The tokens that a token's outcome depends on: its own response; all of its optimizer step, by the weights before that
step; or the whole batch, by the weights before its first step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """The N trained tokens of some whole responses, or of a whole mini-batch or batch; nothing here has a gradient.

    w = proximal probability / probability under the weights that drew the token.
    """

    proximal: Tensor  # [N], log-probabilities
    rollout: Tensor  # [N], log-probabilities
    log_ratio: Tensor  # [N], log w within ±20
    advantages: Tensor  # [N]
    sequence: Tensor  # [N] int64, which response
    sequences: int

    def of_sequences(self, values: Tensor) -> Tensor:
        """The sum over each token's own response  # [N] -> [N]"""
        return values.new_zeros(self.sequences).index_add(0, self.sequence, values)[self.sequence]

    def mean_of_sequences(self, values: Tensor) -> Tensor:
        """The mean over each token's own response  # [N] -> [N]"""
        return self.of_sequences(values) / self.of_sequences(values.new_ones(values.shape))

    def max_of_sequences(self, values: Tensor) -> Tensor:
        """The largest value of each token's own response, for values of 0 or more  # [N] -> [N]"""
        # From zeros: amax would take them for values, which is why only values of 0 or more have a maximum here.
        return values.new_zeros(self.sequences).scatter_reduce(0, self.sequence, values, "amax")[self.sequence]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrected:
    """The outcome for each token: a multiplier of its loss, a mask, and a mark for the loss. None: nothing changes."""

    multiplier: Tensor | None = None  # [N]
    keep: Tensor | None = None  # [N] bool
    marked: Tensor | None = None  # [N] bool


class Correction(Protocol):
    """A pure function of the tokens that says which of them count, and how much."""

    @property
    def scope(self) -> Scope:
        """The tokens of one call; a scope above a response costs a forward pass before each step, or the first."""
        ...

    @property
    def weighs(self) -> bool:
        """True for a correction with a multiplier, incompatible with a second ratio in the loss."""
        ...

    def correct(self, tokens: Mismatch) -> Corrected:
        """The multiplier, mask and marks of the tokens, each [N] or None."""
        ...
