"""`VerlTrainerEngine`: trains with verl's engines on all ranks of a process group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist

from rftd.ops.errors import ConfigError
from rftd.ops.releases import release_of
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TrainerSpec
from rftd.workers.devices.compute_device import compute_device
from rftd.workers.engines.learner.backend import StageModels
from rftd.workers.engines.learner.engine import ModelEngine
from rftd.workers.engines.learner.model import try_description
from rftd.workers.engines.learner.opening import environment
from rftd.workers.engines.learner.snapshot import TorchSnapshot, rounded_for
from rftd.workers.engines.ranks.spool import SpreadWeights
from rftd.workers.engines.ranks.spread import digest, one_by_one
from rftd.workers.engines.verl import platform
from rftd.workers.engines.verl.arguments import DEVICE, VerlTrainerArgs, check_heads, parse
from rftd.workers.engines.verl.group import Shares, join_group
from rftd.workers.engines.verl.megatron.sizes import check_arguments, check_installed
from rftd.workers.engines.verl.packing import PackedTexts
from rftd.workers.learning.engine import WeightsSnapshot
from rftd.workers.models.pretrained import outlined_model
from rftd.workers.weights.checksum import Form

if TYPE_CHECKING:
    from rftd.workers.engines.verl.adapter import SpreadAdapter
    from rftd.workers.engines.verl.policy import WholePolicy

    SpreadPolicy: TypeAlias = WholePolicy | SpreadAdapter
else:
    SpreadPolicy = Any  # both import verl, which decides on its devices while it is imported


class VerlTrainerEngine(ModelEngine[SpreadPolicy, PackedTexts]):
    """Implements `TrainerEngine`; every method is called on all ranks with equal arguments.

    A process outside of any process group forms one alone.
    """

    def __init__(self, *, threads: int = 1) -> None:
        """Makes an engine without a model, with `threads` threads for computation."""
        super().__init__(threads=threads)
        self._shares: Shares | None = None

    def environment(self) -> dict[str, str]:
        """Returns the facts that influence the weights' bits: releases, number of ranks, threads, device, processor."""
        surroundings = environment(self._device, threads=self._threads, deterministic=self._determinism.on)
        surroundings |= {"verl": release_of("verl"), "ranks": str(dist.get_world_size())}
        arguments = parse(self._trainer.engine_args)
        if arguments.strategy == "megatron":
            parts = str(arguments.tensor_model_parallel_size)
            surroundings |= {"megatron-core": release_of("megatron-core"), "tensor_model_parallel_size": parts}
        return surroundings

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Loads the base model and spreads it over the ranks.

        Raises DataError for an unreadable model, ConfigError for settings that verl does not support.
        """
        torch.set_num_threads(self._threads)
        spec = experiment.stages[0]
        arguments = parse(spec.trainer.engine_args)
        if arguments.strategy == "megatron":
            # It sums gradients beside the next layer, in the order that CUDA keeps with one queue alone.
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        self._device = compute_device(arguments.device, deterministic=experiment.deterministic, field=DEVICE)
        if self._device.type == "cuda":
            # Each rank of a node computes on the GPU of its number there.
            self._device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
            torch.cuda.set_device(self._device)
        _check(arguments, spec)
        if arguments.strategy != "megatron":
            check_heads(arguments, Path(model_path))
        platform.choose_platform(self._device, field=DEVICE)
        self._determinism.set(self.deterministic)
        join_group(self._device)
        if arguments.strategy == "megatron":
            on_cpu = self._device.type == "cpu"
            check_arguments(arguments, spec.trainer.dtype, ranks=dist.get_world_size(), on_cpu=on_cpu)
        # After the platform: verl decides on its devices while it is imported.
        from rftd.workers.engines.verl.adapter import SpreadAdapter
        from rftd.workers.engines.verl.policy import WholePolicy
        from rftd.workers.engines.verl.wrapping import Wrapping

        self._experiment = experiment
        self._base = Path(model_path)
        wrapping = Wrapping(arguments, self._device, spec.trainer.dtype, spec.model.trust_remote_code)
        lora = spec.model.lora
        if lora is None:
            self._policy = WholePolicy(self._base, wrapping)
        else:
            merged = arguments.lora_publish == "merged"
            self._policy = SpreadAdapter(self._base, wrapping, lora, seed=experiment.seed, merged=merged)
        if dist.get_rank() == 0 and any(stage.trainer.save_hf != "never" for stage in experiment.stages):
            try_description(outlined_model(self._base, dtype=torch.float32), self._base)
        model = self._policy.model
        self._shares = Shares(
            rank=model.get_data_parallel_rank(),
            count=model.get_data_parallel_size(),
            device=self._device,
            group=model.get_data_parallel_group(),
        )
        self._weights_changed()

    def stage_models(self, stage: StageSpec) -> StageModels[PackedTexts]:
        """Returns the models of a stage, spread over the ranks, with the policy loaded. Raises ConfigError."""
        from rftd.workers.engines.verl.stage_models import VerlStageModels

        assert self._shares is not None, "used before open"
        return VerlStageModels.of(stage, self._open_policy, self._shares)

    def digest(self, form: Form) -> str:
        """Computes the digest of the current weights in the form, equal on every rank."""
        return digest(form, self._open_policy.published(), self._digester)

    def snapshot(self) -> WeightsSnapshot:
        """Returns a copy of the complete weights, in bfloat16 if all explorers run the model in bfloat16; on several
        ranks `spread` is used instead.
        """
        tensors = dict(one_by_one(self._open_policy.published()))
        return TorchSnapshot.of(
            tensors, rounded=rounded_for(self._experiment, self._open_policy.model.outline, tensors)
        )

    def spread(self) -> SpreadWeights:
        """Returns this rank's parts of the current weights, for the trainer process of several ranks."""
        return self._open_policy.spread(self._experiment)

    @property
    def _trainer(self) -> TrainerSpec:
        """Section `trainer` of the current stage; before any stage, of the first."""
        assert self._experiment is not None, "used before open"
        return self._experiment.stages[0].trainer if self._learner is None else self._learner.spec.trainer


def _check(arguments: VerlTrainerArgs, stage: StageSpec) -> None:
    """Raises ConfigError for a dtype that the engine does not train in and, with Megatron, for missing packages or a
    LoRA.
    """
    if stage.trainer.dtype not in ("float32", "bfloat16"):
        raise ConfigError(
            f"the verl engine does not train in {stage.trainer.dtype!r}",
            field="trainer.dtype",
            fix="use float32 or bfloat16",
        )
    if arguments.strategy == "megatron":
        check_installed("trainer.trainer_strategy")
        if stage.model.lora is not None:
            raise ConfigError(
                "a LoRA needs an adapter, and the strategy megatron trains whole models alone",
                field="model.lora_configs",
                fix="leave it out, or write trainer.trainer_strategy: fsdp2",
            )
