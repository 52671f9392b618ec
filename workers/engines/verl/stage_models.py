"""`VerlStageModels`: the models of one stage, spread over the ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rftd.streams.spec.spec import StageSpec
from rftd.workers.engines.learner.learner import check_vocabulary
from rftd.workers.engines.verl.adapter import SpreadAdapter
from rftd.workers.engines.verl.arguments import VerlTrainerArgs, parse
from rftd.workers.engines.verl.group import Shares
from rftd.workers.engines.verl.opened_model import frozen_model, open_model
from rftd.workers.engines.verl.packing import Budget, PackedTexts, pack
from rftd.workers.engines.verl.passes import VerlPasses
from rftd.workers.engines.verl.policy import WholePolicy
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlStageModels:
    """Implements `StageModels` with complete texts as micro-batches; all ranks make equal calls."""

    spec: StageSpec
    """Specification of the stage."""
    policy: VerlPasses
    """Passes of the model under training."""
    critic_arguments: VerlTrainerArgs
    """The engine's arguments, including the critic's."""
    opened: WholePolicy | SpreadAdapter
    """The model under training."""

    @classmethod
    def of(cls, spec: StageSpec, policy: WholePolicy | SpreadAdapter, shares: Shares) -> VerlStageModels:
        """Returns the models of a stage, with the policy loaded. Raises ConfigError for arguments of the stage."""
        passes = VerlPasses(policy.model, shares, policy.parameters())
        return cls(spec=spec, policy=passes, critic_arguments=parse(spec.trainer.engine_args), opened=policy)

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.policy.shares.device

    @property
    def writers(self) -> int:
        """Number of ranks that write a checkpoint at a time, each on one thread; 0: all."""
        strategy = self.critic_arguments.save_strategy
        if strategy == "single_node":
            # Set for each rank by whoever started it; without it all are of one node.
            return int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        return 0 if strategy == "unrestricted" else 1

    def freeze(self) -> VerlPasses:
        """Returns a frozen copy of the policy's current weights, to be the reference."""
        return self.opened.freeze(self.policy, offload=self.critic_arguments.ref_param_offload)

    def critic(self, folder: Path) -> VerlPasses:
        """Opens a critic with the decoder of the model in `folder`. Raises DataError for a folder without a model."""
        model = open_model(folder, self.opened.wrapping, critic=True)
        return VerlPasses(model, self.policy.shares, model.parameters)

    def teacher(self, folder: Path) -> VerlPasses:
        """Opens a frozen model from `folder`. Raises DataError for a folder without a model, ConfigError for another
        vocabulary than the policy's.
        """
        model = frozen_model(folder, self.opened.wrapping, offload=self.critic_arguments.ref_param_offload)
        teacher = VerlPasses(model, self.policy.shares)
        check_vocabulary(self.policy, teacher)
        return teacher

    def pack(
        self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation
    ) -> list[PackedTexts]:
        """Returns micro-batches for the samples with these `numbers`: texts of similar length, within the limits of a
        rank.
        """
        arguments = self.critic_arguments
        budget = Budget(
            # Ranks with a shared sequence have a part of it each.
            tokens=self.spec.trainer.max_tokens_per_micro_batch * arguments.ulysses_sequence_parallel_size,
            padded=not arguments.use_remove_padding,
            texts=0 if arguments.use_dynamic_bsz else arguments.micro_batch_size_per_gpu,
            shares=self.policy.shares.count,
        )
        return pack(samples, numbers, aggregation, budget)
