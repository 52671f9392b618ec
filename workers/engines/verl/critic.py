"""`VerlCritic`: the return that is to be expected at each token, learned by a model spread over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from rftd.streams.spec.optimizer import Optimizer
from rftd.streams.spec.schedule import rate_steps
from rftd.streams.spec.spec import StageSpec
from rftd.workers.engines.verl import saving
from rftd.workers.engines.verl.arguments import VerlTrainerArgs
from rftd.workers.engines.verl.group import Shares
from rftd.workers.engines.verl.model import CriticModel, Found, Wrapping, open_model
from rftd.workers.engines.verl.optimizer import ShardedOptimizer
from rftd.workers.engines.verl.packing import PackedTexts
from rftd.workers.engines.verl.passes import Passes
from rftd.workers.learning.stage.learner import Terms, ValueLossOver


class VerlCritic:
    """Implements `ValueLearner` with verl's value engine."""

    def __init__(self, spec: StageSpec, wrapping: Wrapping, arguments: VerlTrainerArgs, shares: Shares) -> None:
        self._arguments = arguments
        model = open_model(CriticModel, Path(spec.trainer.critic_path or spec.model.path), wrapping)
        self.passes = Passes(model, shares)
        self._schedule = arguments.optimizer(rate_steps(spec), decay_all=spec.algorithm.optimizer.decay_all)
        self._optimizer = ShardedOptimizer(self._schedule, model.parameters, model)

    @property
    def schedule(self) -> Optimizer:
        """Its optimizer, by whose schedule its learning rate goes."""
        return self._schedule

    @property
    def value_clip(self) -> float:
        """`critic_clip`."""
        return self._arguments.critic_clip

    @property
    def grad_clip(self) -> float:
        """`critic_grad_clip`."""
        return self._arguments.critic_grad_clip

    def values(self, micro_batches: Sequence[PackedTexts]) -> list[Tensor]:
        """The values before each trained token  # [N] float32 each"""
        return [found["values"] for found in self.passes.values(micro_batches, ["values"])]

    def accumulate(self, micro_batches: Sequence[PackedTexts], loss: ValueLossOver) -> list[dict[str, Tensor]]:
        """Adds the gradients of a loss of each micro-batch to those before; returns their figures."""

        def over(number: int, found: Found) -> Terms:
            return loss(number, self.passes.of_targets(found["values"], micro_batches[number]))

        return self.passes.accumulate(micro_batches, over)

    def clip(self, limit: float) -> float:
        """Scales the gradient down to the norm `limit`; returns the norm before."""
        return self._optimizer.clip(limit)

    def step(self, rate: float) -> None:
        """Takes one step of its optimizer, by the gradient that was accumulated."""
        self._optimizer.step(rate)

    def forget(self) -> None:
        """Drops the gradient that was accumulated."""
        self._optimizer.forget()

    def write(self, folder: Path) -> None:
        """Saves weights and optimizer into a checkpoint's `critic`."""
        strategy = self._arguments.save_strategy
        saving.write(folder, "model", self.passes.model.tensors(), strategy)
        saving.write(folder, "optimizer", self._optimizer.state(), strategy)

    def restore(self, folder: Path) -> None:
        """Takes what `write` saved. Raises DataError if it is missing or of another model."""
        saving.read(folder, "model", self.passes.model.tensors())
        saving.read_state(folder, self._optimizer)
