"""`TorchLearner`: what lasts as long as one stage of the torch engine: optimizer, reference, critic, teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError
from rftd.streams.spec.schedule import rate_steps
from rftd.streams.spec.spec import StageSpec
from rftd.workers.engines.torch.trainer import saving
from rftd.workers.engines.torch.trainer.arguments import parse
from rftd.workers.engines.torch.trainer.critic import Critic, Precision
from rftd.workers.engines.torch.trainer.forward import logprobs_of, signals_of, squares_of
from rftd.workers.engines.torch.trainer.model import can_share_prefixes, load_model
from rftd.workers.engines.torch.trainer.optimizer import make_optimizer, restore_state, same_kind, state_of, tensors_in
from rftd.workers.engines.torch.trainer.packing import PackedRows, pack
from rftd.workers.engines.torch.trainer.policy import Policy, Reference
from rftd.workers.engines.torch.trainer.trial import try_forward
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import PolicyLossOver, PolicyValues, TokenValues
from rftd.workers.learning.token_advantages.token_advantage import PassField


@dataclass(frozen=True, slots=True)
class TorchLearner:
    """Implements `Learner` with the models of one process."""

    spec: StageSpec
    policy: Policy
    device: torch.device
    optimizer: torch.optim.Optimizer
    reference: Reference | None
    critic: Critic | None
    teacher: Any | None
    """The teacher, a frozen model."""
    share: bool
    """True if responses to one prompt share a row."""
    precision: Precision
    on_change: Callable[[], None]
    """The function that is called after each change of the policy's weights."""

    @classmethod
    def begin(
        cls,
        spec: StageSpec,
        objective: Objective,
        policy: Policy,
        device: torch.device,
        on_change: Callable[[], None],
    ) -> TorchLearner:
        """A fresh optimizer and critic; the policy as it is now for a reference. Raises ConfigError, DataError."""
        # The spec is checked before anything is loaded: a wrong argument is found in milliseconds, not after the
        # models.
        arguments = parse(spec.trainer.engine_args)
        if spec.trainer.dtype not in ("float32", "bfloat16"):
            raise ConfigError(
                f"the torch engine does not train in {spec.trainer.dtype!r}",
                field="trainer.dtype",
                fix="use float32 or bfloat16",
            )
        precision = partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=spec.trainer.dtype == "bfloat16")
        needs = objective.pass_fields
        critic = teacher = None
        if "values" in needs:
            critic = Critic(
                Path(spec.trainer.critic_path or spec.model.path),
                device,
                arguments,
                precision=precision,
                optimizer=arguments.optimizer(rate_steps(spec), decay_all=spec.algorithm.optimizer.decay_all),
                trusted=spec.model.trust_remote_code,
            )
        if "teacher_logprobs" in needs:
            teacher = _teacher(spec, policy, device)
        return cls(
            spec=spec,
            policy=policy,
            device=device,
            optimizer=make_optimizer(spec.algorithm.optimizer, policy.parameters()),
            reference=policy.freeze() if objective.needs_reference else None,
            critic=critic,
            teacher=teacher,
            share=shares_prefixes(policy.model, spec),
            precision=precision,
            on_change=on_change,
        )

    @property
    def vocabulary_tokens(self) -> int:
        """The rows of the model's input embeddings."""
        found: int = self.policy.model.get_input_embeddings().num_embeddings
        return found

    def pack(
        self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation
    ) -> list[PackedRows]:
        """Rows of token trees; responses to one prompt share it, if they may."""
        return pack(
            samples,
            budget_tokens=self.spec.trainer.max_tokens_per_micro_batch,
            aggregation=aggregation,
            hidden_size=self.policy.model.config.hidden_size,
            share=self.share,
            numbers=numbers,
        )

    @torch.no_grad()
    def values(self, micro_batches: Sequence[PackedRows], fields: frozenset[PassField]) -> list[TokenValues]:
        """The asked values under the present weights, one model after the other."""
        known: list[dict[str, Tensor]] = [{} for _ in micro_batches]
        model = self.policy.model
        with self.precision():
            if fields & {"logprobs", "entropies"}:
                for found, micro in zip(known, micro_batches, strict=True):
                    found["logprobs"], found["entropies"] = logprobs_of(model, micro, self.device)
            if "ref_logprobs" in fields:
                assert self.reference is not None, "the objective has no reference"
                # Once for all micro-batches: with an adapter policy and reference are one model, whose weights change.
                with self.reference.model() as frozen:
                    for found, micro in zip(known, micro_batches, strict=True):
                        found["ref_logprobs"] = logprobs_of(frozen, micro, self.device)[0]
            if "teacher_logprobs" in fields:
                for found, micro in zip(known, micro_batches, strict=True):
                    found["teacher_logprobs"] = logprobs_of(self.teacher, micro, self.device)[0]
            if "values" in fields:
                assert self.critic is not None, "the objective has no critic"
                for found, micro in zip(known, micro_batches, strict=True):
                    found["values"] = self.critic.values(micro)
            if "entropy_signals" in fields:
                for found, micro in zip(known, micro_batches, strict=True):
                    found["entropy_signals"] = signals_of(model, micro, self.device)
            if "squares" in fields:
                for found, micro in zip(known, micro_batches, strict=True):
                    found["squares"] = squares_of(model, micro, self.device)
        return [TokenValues(**found) for found in known]

    def accumulate(
        self, micro_batches: Sequence[PackedRows], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of a loss of each micro-batch to those before; returns their figures."""
        figures = []
        for number, micro in enumerate(micro_batches):
            ref_logprobs = None
            with self.precision():
                if reference:
                    # Before the policy's own forward: an adapter's reference changes the weights, which no graph may
                    # hold by then.
                    (found,) = self.values([micro], frozenset({"ref_logprobs"}))
                    ref_logprobs = found.ref_logprobs
                logprobs, entropies = logprobs_of(self.policy.model, micro, self.device)
            # Outside autocast: log-probabilities are float32, and the loss's sums over thousands of tokens stay so.
            value, terms = loss(number, PolicyValues(logprobs=logprobs, entropies=entropies, ref_logprobs=ref_logprobs))
            value.backward()  # type: ignore[no-untyped-call]
            figures.append(terms)
        return figures

    def clip(self, limit: float) -> float:
        """Scales the policy's gradients down to the norm `limit`, if that is above 0; returns the norm before."""
        parameters = [value for value in self.policy.parameters().values() if value.grad is not None]
        norm = torch.nn.utils.get_total_norm([value.grad for value in parameters if value.grad is not None])
        if limit > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return float(norm)

    def step(self, rate: float) -> None:
        """Takes one step of the policy's optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.on_change()

    def forget(self) -> None:
        """Drops the policy's gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def kept(self) -> Iterator[Tensor]:
        """The tensors on the device beside the policy's: moments, reference, critic, teacher."""
        yield from tensors_in(self.optimizer)
        if self.reference is not None:
            yield from self.reference.tensors().values()
        if self.critic is not None:
            yield from self.critic.kept()
        if self.teacher is not None:
            yield from self.teacher.parameters()
            yield from self.teacher.buffers()

    def write(self, folder: Path) -> None:
        """Saves what is not the policy's own into a checkpoint."""
        actor = folder / "actor"
        saving.write_tensors(actor / "optimizer.safetensors", state_of(self.optimizer, self.policy.parameters()))
        if self.reference is not None:
            saving.write_tensors(actor / "reference.safetensors", self.reference.tensors())
        if self.critic is not None:
            self.critic.write(folder / "critic")

    def restore(self, folder: Path, *, optimizer: str) -> None:
        """Takes what `write` saved back; an optimizer of another kind, and what was not saved, stays as it began."""
        actor = folder / "actor"
        if same_kind(optimizer, self.spec.algorithm.optimizer.optimizer_type):
            restore_state(
                self.optimizer, self.policy.parameters(), saving.read_tensors(actor / "optimizer.safetensors")
            )
        path = actor / "reference.safetensors"
        # It may be missing: the checkpoint of a run whose KL coefficient was 0 has none, and the weights of now are
        # taken.
        if self.reference is not None and saving.has_tensors(path):
            self.reference.restore(saving.read_tensors(path), path)
        if self.critic is not None and (folder / "critic").is_dir():
            self.critic.restore(folder / "critic")


def shares_prefixes(model: Any, spec: StageSpec) -> bool:
    """True if responses to one prompt share a row in this stage. Raises ConfigError."""
    setting = parse(spec.trainer.engine_args).prefix_sharing
    return setting == "always" or (setting == "auto" and can_share_prefixes(model))


def _teacher(spec: StageSpec, policy: Policy, device: torch.device) -> Any:
    if not spec.trainer.teacher_path:
        raise ConfigError(
            "the algorithm learns from a teacher, and none is named",
            field="explorer.auxiliary_models",
            fix="name the teacher's folder in explorer.auxiliary_models[0].model_path",
        )
    folder = Path(spec.trainer.teacher_path)
    teacher = load_model(folder, device, trust_remote_code=spec.model.trust_remote_code)
    # Token ids of one are looked up in the other's vocabulary: equal sizes are all that can be told without tokenizers.
    sizes = [model.get_output_embeddings().weight.shape[0] for model in (policy.model, teacher)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the teacher knows {sizes[1]} tokens, the model that is trained {sizes[0]}",
            field="explorer.auxiliary_models",
            fix="take a teacher with the same tokenizer",
        )
    try_forward(
        teacher, device, where=folder, max_tokens=spec.model.max_model_len, share=shares_prefixes(policy.model, spec)
    )
    return teacher.requires_grad_(False)
