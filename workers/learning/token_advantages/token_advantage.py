"""`TokenAdvantage`: the interface of advantages of single tokens, and its lookup by an algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.registry import advantage_function

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.losses.batch_tokens import BatchTokens

PassField = Literal["logprobs", "entropies", "entropy_signals", "squares", "ref_logprobs", "teacher_logprobs", "values"]
"""A field of `BatchTokens` computed by a forward pass over the batch."""


@runtime_checkable
class TokenAdvantage(AdvantageFunction, Protocol):
    """A pure function of a complete batch: the advantage of each token from facts beyond rewards, such as a critic's
    values, a teacher, entropies or a penalty.

    It is an advantage function of groups too, and receives the advantages of the groups in the batch's `advantages`.
    """

    @property
    def needs(self) -> frozenset[PassField]:
        """The fields of the batch that it reads besides rewards and masks; each costs a forward pass."""
        ...

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns the advantage of each trained token  # [N]"""
        ...


@runtime_checkable
class ValueAdvantage(TokenAdvantage, Protocol):
    """A token advantage relative to a critic's values."""

    def estimate(self, batch: BatchTokens) -> Tensor:
        """Returns the advantages before whitening: the critic's target is its value plus these  # [N]"""
        ...


def token_advantage(spec: AlgorithmSpec) -> TokenAdvantage | None:
    """Returns the algorithm's advantage function if it computes advantages of single tokens; None if only of responses.

    Raises ConfigError for an unknown name or unfit arguments.
    """
    function = advantage_function(spec)
    return function if isinstance(function, TokenAdvantage) else None
