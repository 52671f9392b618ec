"""`TokenAdvantage`: how much better than expected each token was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.registry import advantage_function

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.losses.batch_tokens import BatchTokens

PassField = Literal["logprobs", "entropies", "entropy_signals", "squares", "ref_logprobs", "teacher_logprobs", "values"]
"""A field of `BatchTokens` that costs a forward pass."""


@runtime_checkable
class TokenAdvantage(AdvantageFunction, Protocol):
    """A pure function of a whole batch, for what rewards alone do not tell: values, a teacher, entropies, a penalty.

    It is an advantage function of groups too: what that gives is the batch's `advantages`, to go on from.
    """

    @property
    def needs(self) -> frozenset[PassField]:
        """The fields that it reads beside rewards and masks."""
        ...

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """The advantage of each trained token  # [N]"""
        ...


@runtime_checkable
class ValueAdvantage(TokenAdvantage, Protocol):
    """A token advantage that compares with a critic's values."""

    def estimate(self, batch: BatchTokens) -> Tensor:
        """The advantages before they are whitened: a critic learns its values plus these  # [N]"""
        ...


def token_advantage(spec: AlgorithmSpec) -> TokenAdvantage | None:
    """The algorithm's advantage function of single tokens, over the whole batch; None for a function of responses.

    Raises ConfigError for an unknown name or unfit arguments.
    """
    function = advantage_function(spec)
    return function if isinstance(function, TokenAdvantage) else None
