"""`Learner`: the interface between a stage's training and an engine: values of tokens, and gradients of losses over
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from rftd.streams.spec.sections import Optimizer
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.micro_batch import MicroBatch
from rftd.workers.learning.token_advantages.token_advantage import PassField

M = TypeVar("M", bound=MicroBatch)
"""Type of an engine's micro-batches."""
M_contra = TypeVar("M_contra", bound=MicroBatch, contravariant=True)
"""Type of the micro-batches accepted by an interface."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenValues:
    """Values of the N trained tokens of a micro-batch, float32, in nats, without gradient; None for a field not
    requested.
    """

    logprobs: Tensor | None = None  # [N], of the policy
    entropies: Tensor | None = None  # [N], of the policy
    entropy_signals: Tensor | None = None  # [N], the mean of p (H + log p) over what might be drawn
    squares: Tensor | None = None  # [N], the sum of the squares of all probabilities
    ref_logprobs: Tensor | None = None  # [N], of the policy as it was when the stage began
    teacher_logprobs: Tensor | None = None  # [N]
    values: Tensor | None = None  # [N], the critic's: the return to be expected before the token


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyValues:
    """Values of the N trained tokens of a micro-batch, as input of the policy's loss."""

    logprobs: Tensor  # [N], with gradient
    entropies: Tensor | None  # [N], with gradient; None where the engine lacks them
    ref_logprobs: Tensor | None  # [N], if they were asked for


Terms: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""A loss with a gradient  # [], and figures without one  # [] each."""
PolicyLossOver: TypeAlias = Callable[[int, PolicyValues], Terms]
"""Function of a micro-batch's number in the call and its values: the loss of the micro-batch."""
ValueLossOver: TypeAlias = Callable[[int, Tensor], Terms]
"""Function of a micro-batch's number in the call and the critic's values  # [N], with gradient: the loss of the
micro-batch.
"""


class Gradient(Protocol):
    """The accumulated gradient of a model, and the model's optimizer."""

    def clip(self, limit: float) -> float | None:
        """Scales the gradient down to the norm `limit`, unless `limit` is 0; returns the norm before.

        None: the engine scales it within the step, and the norm is unknown.
        """
        ...

    def step(self, rate: float) -> None:
        """Takes one optimizer step with the accumulated gradient and the learning rate `rate`."""
        ...

    def forget(self) -> None:
        """Sets the accumulated gradient to zero. Idempotent."""
        ...


class ValueLearner(Gradient, Protocol[M_contra]):
    """The critic: a model of each token's expected return, trained beside the policy."""

    @property
    def schedule(self) -> Optimizer:
        """Settings of the critic's optimizer, with the schedule of its learning rate over the stage's steps."""
        ...

    @property
    def value_clip(self) -> float:
        """Maximum distance of a value from its value before the batch, within the loss, in units of the return."""
        ...

    @property
    def grad_clip(self) -> float:
        """Maximum norm of its gradient; 0: unbounded."""
        ...

    def accumulate(self, micro_batches: Sequence[M_contra], loss: ValueLossOver) -> list[dict[str, Tensor]]:
        """Computes `loss` of each micro-batch, and adds its gradient to the accumulated one; returns each micro-batch's
        figures.
        """
        ...


class Learner(Gradient, Protocol[M]):
    """The policy under training, with the reference, critic and teacher needed by the objective.

    An engine of several ranks divides the micro-batches of a call among the ranks: every rank makes the same calls and
    gets the same answers, including figures of all micro-batches.
    """

    @property
    def device(self) -> torch.device:
        """The device of returned values, and of a loss's other tensors."""
        ...

    @property
    def critic(self) -> ValueLearner[M] | None:
        """The critic; None if the objective needs none."""
        ...

    @property
    def vocabulary_tokens(self) -> int:
        """Number of the model's token ids: valid ids are below it."""
        ...

    def pack(self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation) -> list[M]:
        """Returns micro-batches of the engine's layout for the samples with these `numbers`, each sample in exactly
        one.

        A pure function. Raises TrainError for a sample with arrays of unequal length.
        """
        ...

    def values(self, micro_batches: Sequence[M], fields: frozenset[PassField]) -> list[TokenValues]:
        """Returns the requested fields of each micro-batch's tokens under the current weights, without gradient."""
        ...

    def accumulate(
        self, micro_batches: Sequence[M], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        """Computes `loss` of each micro-batch, and adds its gradient to the accumulated one; returns each micro-batch's
        figures.

        Losses are already weighted by all tokens of the step, so gradients are added and never divided. With
        `reference`, the values include the reference's log-probabilities.
        """
        ...
