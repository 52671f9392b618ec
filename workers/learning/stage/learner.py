"""`Learner`: the seam between a stage's training and an engine: values of tokens, and gradients of losses over them."""

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
M_contra = TypeVar("M_contra", bound=MicroBatch, contravariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenValues:
    """The values of the N trained tokens of a micro-batch, float32, in nats; None: nobody asked."""

    logprobs: Tensor | None = None  # [N], of the policy
    entropies: Tensor | None = None  # [N], of the policy
    entropy_signals: Tensor | None = None  # [N], the mean of p (H + log p) over what might be drawn
    squares: Tensor | None = None  # [N], the sum of the squares of all probabilities
    ref_logprobs: Tensor | None = None  # [N], of the policy as it was when the stage began
    teacher_logprobs: Tensor | None = None  # [N]
    values: Tensor | None = None  # [N], the critic's: the return to be expected before the token


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyValues:
    """The values of the N trained tokens that the policy's loss is made of."""

    logprobs: Tensor  # [N], with gradient
    entropies: Tensor | None  # [N], with gradient; None where the engine lacks them
    ref_logprobs: Tensor | None  # [N], if they were asked for


Terms: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""A loss with a gradient  # [], and figures without one  # [] each."""
PolicyLossOver: TypeAlias = Callable[[int, PolicyValues], Terms]
"""The loss of a micro-batch, which is named by its number in the call."""
ValueLossOver: TypeAlias = Callable[[int, Tensor], Terms]
"""Likewise, of the critic's values  # [N], with gradient."""


class Gradient(Protocol):
    """An accumulated gradient and its optimizer."""

    def clip(self, limit: float) -> float | None:
        """Scales the gradient down to the norm `limit`, if that is above 0; returns the norm before.

        None: the gradient is scaled within the step, with an unknown norm.
        """
        ...

    def step(self, rate: float) -> None:
        """Takes one optimizer step with the learning rate `rate`."""
        ...

    def forget(self) -> None:
        """Drops the gradient. Idempotent."""
        ...


class ValueLearner(Gradient, Protocol[M_contra]):
    """The critic."""

    @property
    def schedule(self) -> Optimizer:
        """The critic's optimizer, with the schedule of its learning rate over the stage's steps."""
        ...

    @property
    def value_clip(self) -> float:
        """The largest distance of a value from its value before the batch, within the loss."""
        ...

    @property
    def grad_clip(self) -> float:
        """The bound of its gradient's norm; 0: none."""
        ...

    def accumulate(self, micro_batches: Sequence[M_contra], loss: ValueLossOver) -> list[dict[str, Tensor]]:
        """Adds the gradients of a loss of each micro-batch to those of earlier calls; returns the losses' terms."""
        ...


class Learner(Gradient, Protocol[M]):
    """The policy, with reference, critic and teacher of the objective.

    An engine of several ranks divides the micro-batches of a call among the ranks: every rank makes equal calls and
    gets equal answers, figures of all micro-batches included.
    """

    @property
    def device(self) -> torch.device:
        """Where values are, and where a loss's other tensors must be."""
        ...

    @property
    def critic(self) -> ValueLearner[M] | None:
        """The critic, if the objective has one."""
        ...

    @property
    def vocabulary_tokens(self) -> int:
        """The number of token ids that the model knows."""
        ...

    def pack(self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation) -> list[M]:
        """The samples with these numbers as micro-batches of the engine's own making, each sample in one of them.

        A pure function. Raises TrainError for a sample with arrays of unequal length.
        """
        ...

    def values(self, micro_batches: Sequence[M], fields: frozenset[PassField]) -> list[TokenValues]:
        """The asked values of each micro-batch's tokens under the present weights, none with a gradient."""
        ...

    def accumulate(
        self, micro_batches: Sequence[M], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of a loss of each micro-batch to those of earlier calls; returns the losses' terms.

        Losses are weighted already by all tokens of the step, so gradients add up, and nothing is divided.
        `reference`: with the log-probabilities of the reference.
        """
        ...
