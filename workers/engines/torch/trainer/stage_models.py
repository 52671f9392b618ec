"""`TorchStageModels`: the models of one stage on a device of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import StageSpec
from rftd.workers.engines.learner.learner import check_vocabulary
from rftd.workers.engines.learner.model import can_share_prefixes, load_model
from rftd.workers.engines.torch.trainer.adapter import Adapter
from rftd.workers.engines.torch.trainer.arguments import TorchTrainerArgs, parse
from rftd.workers.engines.torch.trainer.packing import PackedRows, pack
from rftd.workers.engines.torch.trainer.passes import Context, TorchPasses, ValueModel
from rftd.workers.engines.torch.trainer.policy import WholeModel
from rftd.workers.engines.torch.trainer.trial import try_forward
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStageModels:
    """Implements `StageModels` on one device, with token trees as micro-batches."""

    spec: StageSpec
    """Specification of the stage."""
    device: torch.device
    """Device of all models."""
    policy: TorchPasses
    """Passes of the model under training."""
    critic_arguments: TorchTrainerArgs
    """The engine's arguments, including the critic's."""
    share: bool
    """True if responses to one prompt share a row."""
    _opened: WholeModel | Adapter
    """The model under training."""
    writers = 0
    """0: any number of ranks may write a checkpoint at a time."""

    @classmethod
    def of(cls, spec: StageSpec, policy: WholeModel | Adapter, device: torch.device) -> TorchStageModels:
        """Returns the models of a stage, with the policy loaded. Raises ConfigError for arguments of the stage, before
        any loading.
        """
        arguments = parse(spec.trainer.engine_args)
        if spec.trainer.dtype not in ("float32", "bfloat16"):
            raise ConfigError(
                f"the torch engine does not train in {spec.trainer.dtype!r}",
                field="trainer.dtype",
                fix="use float32 or bfloat16",
            )
        half = spec.trainer.dtype == "bfloat16"
        precision: Context = partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=half)
        passes = TorchPasses(model=policy.model, device=device, precision=precision, parameters=policy.parameters())
        return cls(
            spec=spec,
            device=device,
            policy=passes,
            critic_arguments=arguments,
            share=shares_prefixes(policy.model, spec),
            _opened=policy,
        )

    def freeze(self) -> TorchPasses:
        """Returns a frozen copy of the policy's current weights, to be the reference."""
        return self._opened.freeze(self.policy)

    def critic(self, folder: Path) -> TorchPasses:
        """Loads a critic with the decoder of the model in `folder`. Raises DataError for a folder without a model."""
        model = ValueModel(folder, self.device, trust_remote_code=self.spec.model.trust_remote_code)
        return self._passes(model, parameters=dict(model.named_parameters()))

    def teacher(self, folder: Path) -> TorchPasses:
        """Loads a frozen model from `folder`. Raises DataError without a model or if its log-probabilities cannot be
        reproduced, ConfigError for another vocabulary.
        """
        model = load_model(folder, self.device, trust_remote_code=self.spec.model.trust_remote_code)
        teacher = self._passes(model.requires_grad_(False))
        check_vocabulary(self.policy, teacher)
        try_forward(model, self.device, where=folder, max_tokens=self.spec.model.max_model_len, share=self.share)
        return teacher

    def pack(
        self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation
    ) -> list[PackedRows]:
        """Returns micro-batches of token trees for the samples with these `numbers`; responses share their prompt where
        allowed.
        """
        return pack(
            samples,
            budget_tokens=self.spec.trainer.max_tokens_per_micro_batch,
            aggregation=aggregation,
            hidden_size=self.policy.model.config.hidden_size,
            share=self.share,
            numbers=numbers,
        )

    def _passes(self, model: Any, **options: Any) -> TorchPasses:
        """Returns the passes of a model on this device, in the policy's precision."""
        return TorchPasses(model=model, device=self.device, precision=self.policy.precision, **options)


def shares_prefixes(model: Any, spec: StageSpec) -> bool:
    """True if responses to one prompt share a row in this stage. Raises ConfigError for unfit arguments."""
    setting = parse(spec.trainer.engine_args).prefix_sharing
    return setting == "always" or (setting == "auto" and can_share_prefixes(model))
