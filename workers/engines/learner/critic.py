"""`ModelCritic`: a model of the expected return at each token, with its optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Generic

from torch import Tensor

from rftd.streams.spec.sections import Optimizer
from rftd.workers.engines.learner import saving
from rftd.workers.engines.learner.backend import Backend, Figure
from rftd.workers.engines.learner.optimizer import StageOptimizer
from rftd.workers.learning.critic_arguments import CriticArgs
from rftd.workers.learning.stage.learner import M, Terms, ValueLossOver

_VALUES: Final[frozenset[Figure]] = frozenset({"values"})
"""Figures computed by a critic."""


class ModelCritic(Generic[M]):
    """Implements `ValueLearner` with a decoder below a head of one number."""

    def __init__(self, model: Backend[M], schedule: Optimizer, arguments: CriticArgs, *, writers: int) -> None:
        """`schedule` has the settings of the critic's optimizer; at most `writers` ranks write a checkpoint at a time
        (0: all).
        """
        self.model = model
        self.schedule = schedule
        self.value_clip = arguments.critic_clip
        self.grad_clip = arguments.critic_grad_clip
        self.optimizer = StageOptimizer(schedule, model.parameters, model.offloaded)
        self._writers = writers

    def values(self, micro_batches: Sequence[M]) -> list[Tensor]:
        """Returns the expected return before each trained token  # [N] float32 each"""
        return [figures["values"] for figures in self.model.forward(micro_batches, _VALUES)]

    def accumulate(self, micro_batches: Sequence[M], loss: ValueLossOver) -> list[dict[str, Tensor]]:
        """Computes `loss` of each micro-batch, and adds its gradient to the accumulated one; returns each micro-batch's
        terms.
        """

        def over(number: int, figures: Mapping[str, Tensor]) -> Terms:
            return loss(number, figures["values"])

        return self.model.gradients(micro_batches, _VALUES, over)

    def clip(self, limit: float) -> float:
        """Scales the gradient down to the norm `limit`, unless `limit` is 0; returns the norm before."""
        return self.optimizer.clip(limit)

    def step(self, rate: float) -> None:
        """Takes one step of the critic's optimizer."""
        self.optimizer.step(rate)

    def forget(self) -> None:
        """Sets the accumulated gradient to zero."""
        self.optimizer.forget()

    def write(self, folder: Path) -> None:
        """Writes weights and optimizer into a checkpoint's folder `critic`."""
        saving.write(folder, "model", self.model.tensors(), writers=self._writers)
        saving.write(folder, "optimizer", self.optimizer.tensors(), writers=self._writers)

    def restore(self, folder: Path) -> None:
        """Loads weights and optimizer written by `write`. Raises DataError for missing files or another model's."""
        saving.read(folder, "model", self.model.tensors())
        saving.read_state(folder, self.optimizer)
