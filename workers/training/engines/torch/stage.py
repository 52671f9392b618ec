"""`Stage`: the parts of an engine that last as long as one stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError
from rftd.streams.spec import StageSpec
from rftd.workers.training.engines.torch import saving
from rftd.workers.training.engines.torch.arguments import parse
from rftd.workers.training.engines.torch.critic import Critic
from rftd.workers.training.engines.torch.model import can_share_prefixes, load_model
from rftd.workers.training.engines.torch.optimizer import make_optimizer, restore_state, same_kind, state_of, tensors_in
from rftd.workers.training.engines.torch.policy import Policy, Reference
from rftd.workers.training.engines.torch.trial import try_forward
from rftd.workers.training.losses.objective import Objective


@dataclass(frozen=True, slots=True)
class Stage:
    """The objective and what it needs beside the policy."""

    spec: StageSpec
    objective: Objective
    optimizer: torch.optim.Optimizer
    reference: Reference | None
    critic: Critic | None
    teacher: Any | None
    """The teacher, a frozen model."""
    share: bool
    """True if responses to one prompt share a row."""

    @classmethod
    def begin(cls, spec: StageSpec, policy: Policy, device: torch.device) -> Stage:
        """A fresh optimizer and critic; the policy as it is now for a reference. Raises ConfigError, DataError."""
        # The spec is checked before anything is loaded: a wrong argument is found in milliseconds, not after the
        # models.
        objective = Objective.of(spec.algorithm)
        arguments = parse(spec.trainer.engine_args)
        if spec.trainer.dtype not in ("float32", "bfloat16"):
            raise ConfigError(
                f"the torch engine does not train in {spec.trainer.dtype!r}",
                field="trainer.dtype",
                fix="use float32 or bfloat16",
            )
        needs = objective.pass_fields
        trusted = spec.model.trust_remote_code
        critic = teacher = None
        if "values" in needs:
            critic = Critic(
                Path(spec.trainer.critic_path or spec.model.path),
                device,
                arguments,
                decay_all=spec.algorithm.optimizer.decay_all,
                trusted=trusted,
            )
        if "teacher_logprobs" in needs:
            teacher = _teacher(spec, policy, device)
        return cls(
            spec=spec,
            objective=objective,
            optimizer=make_optimizer(spec.algorithm.optimizer, policy.parameters()),
            reference=policy.freeze() if objective.needs_reference else None,
            critic=critic,
            teacher=teacher,
            share=shares_prefixes(policy.model, spec),
        )

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

    def write(self, folder: Path, policy: Policy) -> None:
        """Saves what is not the policy's own into a checkpoint."""
        actor = folder / "actor"
        saving.write_tensors(actor / "optimizer.safetensors", state_of(self.optimizer, policy.parameters()))
        if self.reference is not None:
            saving.write_tensors(actor / "reference.safetensors", self.reference.tensors())
        if self.critic is not None:
            self.critic.write(folder / "critic")

    def restore(self, folder: Path, policy: Policy, *, optimizer: str) -> None:
        """Takes what `write` saved back; an optimizer of another kind, and what was not saved, stays as it began."""
        actor = folder / "actor"
        if same_kind(optimizer, self.spec.algorithm.optimizer.kind):
            restore_state(self.optimizer, policy.parameters(), saving.read_tensors(actor / "optimizer.safetensors"))
        path = actor / "reference.safetensors"
        # It may be missing: the checkpoint of a run whose KL coefficient was 0 has none, and the weights of now are
        # taken.
        if self.reference is not None and path.exists():
            self.reference.restore(saving.read_tensors(path), path)
        if self.critic is not None and (folder / "critic").is_dir():
            self.critic.restore(folder / "critic")

    def trains_policy(self, stage_step: int) -> bool:
        """False while the critic warms up."""
        return self.critic is None or stage_step >= self.spec.trainer.critic_warmup_steps


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
