"""`ModelLearner`: the learner of one stage over the backends of policy, reference, critic and teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, get_args

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError
from rftd.streams.spec.schedule import rate_steps
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import StageSpec
from rftd.workers.engines.learner import saving
from rftd.workers.engines.learner.backend import Backend, Figure, StageModels
from rftd.workers.engines.learner.optimizer import StageOptimizer, same_kind
from rftd.workers.learning.critic_arguments import CriticArgs
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import M, PolicyLossOver, PolicyValues, Terms, TokenValues, ValueLossOver
from rftd.workers.learning.token_advantages.token_advantage import PassField

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
        """Computes `loss` of each micro-batch, and accumulates the gradients; returns the terms of each micro-batch."""

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


_LOGPROBS: Final[frozenset[Figure]] = frozenset({"logprobs"})
"""Figures of a pass for log-probabilities alone."""
_POLICY: Final[frozenset[Figure]] = frozenset({"logprobs", "entropies"})
"""Figures of the policy's pass for a loss."""


@dataclass(frozen=True, slots=True)
class ModelLearner(Generic[M]):
    """Implements `Learner` with the backends of a stage's models; all ranks of an engine make equal calls."""

    spec: StageSpec
    """Specification of the stage."""
    models: StageModels[M]
    """Models of the stage, on the engine's devices."""
    optimizer: StageOptimizer
    """Optimizer of the policy."""
    reference: Backend[M] | None
    """Frozen policy of the stage's beginning; None for an objective without a reference."""
    critic: ModelCritic[M] | None
    """Critic with its optimizer; None for an objective without one."""
    teacher: Backend[M] | None
    """Frozen model to learn from; None for an objective without a teacher."""
    on_change: Callable[[], None]
    """Called after each change of the policy's weights."""

    @classmethod
    def begin(
        cls, spec: StageSpec, objective: Objective, models: StageModels[M], on_change: Callable[[], None]
    ) -> ModelLearner[M]:
        """Creates the learner of a new stage: fresh optimizer and critic, the current policy as the reference. Raises
        ConfigError, DataError.
        """
        policy = models.policy
        return cls(
            spec=spec,
            models=models,
            reference=models.freeze() if objective.needs_reference else None,
            critic=_critic(spec, models) if "values" in objective.pass_fields else None,
            teacher=_teacher(spec, models) if "teacher_logprobs" in objective.pass_fields else None,
            optimizer=StageOptimizer(spec.algorithm.optimizer, policy.parameters, policy.offloaded),
            on_change=on_change,
        )

    @property
    def device(self) -> torch.device:
        """The device of token values and of the loss's other tensors."""
        return self.models.device

    @property
    def vocabulary_tokens(self) -> int:
        """Number of the policy's token ids."""
        return self.models.policy.vocabulary_tokens

    def pack(self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation) -> list[M]:
        """Returns micro-batches for the samples with these `numbers`, each sample in exactly one."""
        return self.models.pack(samples, numbers, aggregation)

    def values(self, micro_batches: Sequence[M], fields: frozenset[PassField]) -> list[TokenValues]:
        """Returns the requested fields under the current weights, computed by one model after the other, without
        gradient.
        """
        columns: list[dict[str, Tensor]] = [{} for _ in micro_batches]

        def add(model: Backend[M] | None, figures: frozenset[Figure], prefix: str = "") -> None:
            assert model is not None, f"the objective has no model for {fields}"
            for column, values in zip(columns, model.forward(micro_batches, figures), strict=True):
                column |= {prefix + figure: values[figure] for figure in figures}

        policy: frozenset[Figure] = frozenset(get_args(Figure)) & fields - {"values"}
        if policy:
            add(self.models.policy, policy)
        if "ref_logprobs" in fields:
            add(self.reference, _LOGPROBS, "ref_")
        if "teacher_logprobs" in fields:
            add(self.teacher, _LOGPROBS, "teacher_")
        if "values" in fields:
            add(None if self.critic is None else self.critic.model, frozenset({"values"}))
        return [TokenValues(**column) for column in columns]

    def accumulate(
        self, micro_batches: Sequence[M], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        """Computes `loss` of each micro-batch, and adds its gradient to the accumulated one; returns each micro-batch's
        terms.
        """
        compared: list[dict[str, Tensor]] | None = None
        if reference:
            assert self.reference is not None, "the objective has no reference"
            # Before all passes of the policy: an adapter's reference changes weights, and no graph may hold them then.
            compared = self.reference.forward(micro_batches, _LOGPROBS)

        def over(number: int, figures: Mapping[str, Tensor]) -> Terms:
            return loss(
                number,
                PolicyValues(
                    logprobs=figures["logprobs"],
                    entropies=figures["entropies"],
                    ref_logprobs=None if compared is None else compared[number]["logprobs"],
                ),
            )

        return self.models.policy.gradients(micro_batches, _POLICY, over)

    def clip(self, limit: float) -> float:
        """Scales the policy's gradient down to the norm `limit`, unless `limit` is 0; returns the norm before."""
        return self.optimizer.clip(limit)

    def step(self, rate: float) -> None:
        """Takes one step of the policy's optimizer."""
        self.optimizer.step(rate)
        self.on_change()

    def forget(self) -> None:
        """Sets the policy's accumulated gradient to zero."""
        self.optimizer.forget()

    def resident(self) -> Iterator[Tensor]:
        """Yields the tensors on the device in addition to the policy's weights: optimizer moments, reference, critic,
        teacher.
        """
        yield from self.optimizer.tensors().values()
        models = [self.reference, self.teacher]
        if self.critic is not None:
            yield from self.critic.optimizer.tensors().values()
            models.append(self.critic.model)
        for model in models:
            if model is not None:
                yield from model.tensors().values()

    def write(self, folder: Path) -> None:
        """Writes optimizer, reference and critic into a checkpoint; the policy writes its own weights."""
        actor = folder / "actor"
        saving.write(actor, "optimizer", self.optimizer.tensors(), writers=self.models.writers)
        if self.reference is not None:
            saving.write(actor, "reference", self.reference.tensors(), writers=self.models.writers)
        if self.critic is not None:
            self.critic.write(folder / "critic")

    def restore(self, folder: Path, *, optimizer: str) -> None:
        """Loads the parts written by `write`; a missing part, or an optimizer of another kind, stays fresh."""
        actor = folder / "actor"
        if same_kind(optimizer, self.spec.algorithm.optimizer.optimizer_type):
            saving.read_state(actor, self.optimizer)
        # A run with a KL coefficient of 0 has no reference in its checkpoint: then the present weights are.
        if self.reference is not None and saving.has_tensors(actor / "reference.safetensors"):
            saving.read(actor, "reference", self.reference.tensors())
        if self.critic is not None and (folder / "critic").is_dir():
            self.critic.restore(folder / "critic")


def _critic(spec: StageSpec, models: StageModels[M]) -> ModelCritic[M]:
    """Loads the critic of a stage, from `critic_path` or else the model's folder, with a fresh optimizer."""
    arguments = models.critic_arguments
    schedule = arguments.optimizer(rate_steps(spec), decay_all=spec.algorithm.optimizer.decay_all)
    folder = Path(spec.trainer.critic_path or spec.model.path)
    return ModelCritic(models.critic(folder), schedule, arguments, writers=models.writers)


def _teacher(spec: StageSpec, models: StageModels[M]) -> Backend[M]:
    """Loads the teacher of a stage. Raises ConfigError if none is named."""
    if not spec.trainer.teacher_path:
        raise ConfigError(
            "the algorithm learns from a teacher, but none is named",
            field="explorer.auxiliary_models",
            fix="name the teacher's folder in explorer.auxiliary_models[0].model_path",
        )
    return models.teacher(Path(spec.trainer.teacher_path))


def check_vocabulary(policy: Backend[M], teacher: Backend[M]) -> None:
    """Raises ConfigError for a teacher with another number of token ids than the policy."""
    # Token ids of one are looked up in the other's vocabulary: equal sizes are all that can be told without tokenizers.
    if teacher.vocabulary_tokens != policy.vocabulary_tokens:
        raise ConfigError(
            f"the teacher knows {teacher.vocabulary_tokens} tokens, the model that is trained "
            f"{policy.vocabulary_tokens}",
            field="explorer.auxiliary_models",
            fix="take a teacher with the same tokenizer",
        )
