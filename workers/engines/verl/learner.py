"""`VerlLearner`: what lasts as long as one stage of the verl engine: optimizer, reference, critic, teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import StageSpec
from rftd.workers.engines.torch.trainer.optimizer import same_kind
from rftd.workers.engines.verl import saving
from rftd.workers.engines.verl.arguments import VerlTrainerArgs, parse
from rftd.workers.engines.verl.critic import VerlCritic
from rftd.workers.engines.verl.group import Shares
from rftd.workers.engines.verl.model import Found, Wrapping
from rftd.workers.engines.verl.optimizer import ShardedOptimizer
from rftd.workers.engines.verl.packing import Budget, PackedTexts, pack
from rftd.workers.engines.verl.passes import Passes
from rftd.workers.engines.verl.policy import SpreadPolicy, frozen_model
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import PolicyLossOver, PolicyValues, Terms, TokenValues
from rftd.workers.learning.token_advantages.token_advantage import PassField


@dataclass(frozen=True, slots=True)
class VerlLearner:
    """Implements `Learner` with models that are spread over the ranks; every rank makes the same calls."""

    spec: StageSpec
    arguments: VerlTrainerArgs
    policy: Passes
    optimizer: ShardedOptimizer
    reference: Passes | None
    critic: VerlCritic | None
    teacher: Passes | None
    vocabulary_tokens: int
    on_change: Callable[[], None]
    """The function that is called after each change of the policy's weights."""

    @classmethod
    def begin(
        cls,
        spec: StageSpec,
        objective: Objective,
        policy: SpreadPolicy,
        shares: Shares,
        on_change: Callable[[], None],
    ) -> VerlLearner:
        """A fresh optimizer and critic; the policy as it is now for a reference. Raises ConfigError, DataError."""
        arguments = parse(spec.trainer.engine_args)
        wrapping: Wrapping = policy.model.wrapping
        needs = objective.pass_fields
        reference = teacher = None
        if objective.needs_reference:
            reference = policy.freeze(offload=arguments.ref_param_offload)
        if "teacher_logprobs" in needs:
            teacher = _teacher(spec, policy.model, wrapping, arguments)
        optimizer = ShardedOptimizer(spec.algorithm.optimizer, policy.learned(), policy.model)
        return cls(
            spec=spec,
            arguments=arguments,
            policy=Passes(policy.model, shares),
            optimizer=optimizer,
            reference=None if reference is None else Passes(reference, shares),
            critic=VerlCritic(spec, wrapping, arguments, shares) if "values" in needs else None,
            teacher=None if teacher is None else Passes(teacher, shares),
            vocabulary_tokens=_vocabulary(policy.model),
            on_change=on_change,
        )

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.policy.shares.device

    def pack(
        self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation
    ) -> list[PackedTexts]:
        """Texts of similar length together, as many as a rank computes at once."""
        arguments = self.arguments
        budget = Budget(
            # Those that share a sequence have each a part of it.
            tokens=self.spec.trainer.max_tokens_per_micro_batch * arguments.ulysses_sequence_parallel_size,
            padded=not arguments.use_remove_padding,
            texts=0 if arguments.use_dynamic_bsz else arguments.micro_batch_size_per_gpu,
            shares=self.policy.shares.count,
        )
        return pack(samples, numbers, aggregation, budget)

    def values(self, micro_batches: Sequence[PackedTexts], fields: frozenset[PassField]) -> list[TokenValues]:
        """The asked values under the present weights, one model after the other."""
        known: list[dict[str, Tensor]] = [{} for _ in micro_batches]
        figures = [name for name in ("entropy_signals", "squares") if name in fields]
        if figures or fields & {"logprobs", "entropies"}:
            names = ["log_probs", "entropy", *figures]
            found = self.policy.values(micro_batches, names, entropy=True, figures=" ".join(figures))
            for mine, each in zip(known, found, strict=True):
                mine |= {"logprobs": each["log_probs"], "entropies": each["entropy"]}
                mine |= {name: each[name] for name in figures}
        if "ref_logprobs" in fields:
            assert self.reference is not None, "the objective has no reference"
            for mine, each in zip(known, self.reference.values(micro_batches, ["log_probs"]), strict=True):
                mine["ref_logprobs"] = each["log_probs"]
        if "teacher_logprobs" in fields:
            assert self.teacher is not None, "the objective has no teacher"
            for mine, each in zip(known, self.teacher.values(micro_batches, ["log_probs"]), strict=True):
                mine["teacher_logprobs"] = each["log_probs"]
        if "values" in fields:
            assert self.critic is not None, "the objective has no critic"
            for mine, values in zip(known, self.critic.values(micro_batches), strict=True):
                mine["values"] = values
        return [TokenValues(**mine) for mine in known]

    def accumulate(
        self, micro_batches: Sequence[PackedTexts], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of a loss of each micro-batch to those before; returns their figures."""
        compared: list[dict[str, Tensor]] | None = None
        if reference:
            assert self.reference is not None, "the objective has no reference"
            # Ahead of all passes of the policy: an adapter's reference changes weights, which no graph may hold then.
            compared = self.reference.values(micro_batches, ["log_probs"])

        def over(number: int, found: Found) -> Terms:
            micro = micro_batches[number]
            return loss(
                number,
                PolicyValues(
                    logprobs=self.policy.of_targets(found["log_probs"], micro),
                    entropies=self.policy.of_targets(found["entropy"], micro),
                    ref_logprobs=None if compared is None else compared[number]["log_probs"],
                ),
            )

        return self.policy.accumulate(micro_batches, over, entropy=True)

    def clip(self, limit: float) -> float:
        """Scales the policy's gradient down to the norm `limit`, if that is above 0; returns the norm before."""
        return self.optimizer.clip(limit)

    def step(self, rate: float) -> None:
        """Takes one step of the policy's optimizer."""
        self.optimizer.step(rate)
        self.on_change()

    def forget(self) -> None:
        """Drops the policy's gradient."""
        self.optimizer.forget()

    def write(self, folder: Path) -> None:
        """Saves what is not the policy's own into a checkpoint."""
        actor = folder / "actor"
        strategy = self.arguments.save_strategy
        saving.write(actor, "optimizer", self.optimizer.state(), strategy)
        if self.reference is not None:
            saving.write(actor, "reference", self.reference.model.tensors(), strategy)
        if self.critic is not None:
            self.critic.write(folder / "critic")

    def restore(self, folder: Path, *, optimizer: str) -> None:
        """Takes what `write` saved back; an optimizer of another kind, and what was not saved, stays as it began."""
        actor = folder / "actor"
        if same_kind(optimizer, self.spec.algorithm.optimizer.optimizer_type):
            saving.read_state(actor, self.optimizer)
        # The checkpoint of a run whose KL coefficient was 0 has no reference, and the weights of now are taken.
        if self.reference is not None and saving.holds(actor, "reference"):
            saving.read(actor, "reference", self.reference.model.tensors())
        if self.critic is not None and (folder / "critic").is_dir():
            self.critic.restore(folder / "critic")


def _vocabulary(model: Any) -> int:
    found: int = model.vocabulary_tokens
    return found


def _teacher(spec: StageSpec, model: Any, wrapping: Wrapping, arguments: VerlTrainerArgs) -> Any:
    if not spec.trainer.teacher_path:
        raise ConfigError(
            "the algorithm learns from a teacher, and none is named",
            field="explorer.auxiliary_models",
            fix="name the teacher's folder in explorer.auxiliary_models[0].model_path",
        )
    teacher = frozen_model(Path(spec.trainer.teacher_path), wrapping, offload=arguments.ref_param_offload)
    # Token ids of one are looked up in the other's vocabulary: equal sizes are all that can be told without tokenizers.
    sizes = [_vocabulary(each) for each in (model, teacher)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the teacher knows {sizes[1]} tokens, the model that is trained {sizes[0]}",
            field="explorer.auxiliary_models",
            fix="take a teacher with the same tokenizer",
        )
    return teacher
