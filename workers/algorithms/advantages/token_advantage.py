"""`TokenAdvantage`: how much better than expected each token was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.algorithms.batch_tokens import BatchTokens

PassField = Literal["logprobs", "entropies", "ref_logprobs", "teacher_logprobs", "values"]
"""A field of `BatchTokens` that costs a forward pass."""


class TokenAdvantage(Protocol):
    """A pure function of a whole batch, for what rewards alone do not tell: values, a teacher, entropies, a penalty."""

    @property
    def needs(self) -> frozenset[PassField]:
        """What it reads beside rewards and masks."""
        ...

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """One number for each trained token  # [N]"""
        ...
