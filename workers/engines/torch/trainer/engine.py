"""`TorchTrainerEngine`: the optimizer steps of a batch on one device, with torch and transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from rftd.ops.cycles import give_back, map_large_blocks
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.devices.compute_device import DeviceName, compute_device
from rftd.workers.engines.learner.engine import ModelEngine
from rftd.workers.engines.learner.learner import ModelLearner, check_vocabulary
from rftd.workers.engines.learner.model import can_share_prefixes, load_model, recompute_layers, try_description
from rftd.workers.engines.learner.opening import check_training, environment
from rftd.workers.engines.learner.snapshot import SpreadTensors, TorchSnapshot, rounded_for
from rftd.workers.engines.ranks.collectives import this_rank
from rftd.workers.engines.torch.trainer.adapter import Adapter
from rftd.workers.engines.torch.trainer.arguments import DEVICE, TorchTrainerArgs, parse
from rftd.workers.engines.torch.trainer.data_parallel import DataParallel
from rftd.workers.engines.torch.trainer.packing import PackedRows, pack
from rftd.workers.engines.torch.trainer.passes import Context, TorchPasses, ValueModel
from rftd.workers.engines.torch.trainer.policy import WholeModel
from rftd.workers.engines.torch.trainer.trial import TEXT_TOKENS, try_forward
from rftd.workers.learning.engine import StepResult, TrainBatch, TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.learner import Learner
from rftd.workers.weights.checksum import Form
from rftd.workers.weights.parked_tensors import Rest


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


_MAPPED_SIZE_BYTES: Final = 4 * 1024**2
"""Size of an allocation from which the C library maps memory separately, and returns it once freed."""


class TorchTrainerEngine(ModelEngine[WholeModel | Adapter, PackedRows]):
    """Implements `TrainerEngine` on one device. Weights are float32; bfloat16 applies to forward passes only."""

    def __init__(self, *, threads: int = 1) -> None:
        """Makes an engine without a model, with `threads` threads for computation."""
        super().__init__(threads=threads)
        self._changes = 0
        """Changes of the weights since the last batch began."""
        self._rest = Rest(self._device, self._kept)

    def environment(self) -> dict[str, str]:
        """Returns the facts that influence the weights' bits: releases, threads, device, processor."""
        return environment(self._device, threads=self._threads, deterministic=self._determinism.on)

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Loads the base model, and sets threads and deterministic algorithms of this process until `close`.

        Raises DataError for an unreadable model, or if the trainer's log-probabilities differ from the model's own
        forward pass; DeviceMemoryError for a stage too large for the device.
        """
        torch.set_num_threads(self._threads)
        arguments = parse(experiment.stages[0].trainer.engine_args)
        # Several ranks compute on devices of their own only if that is written.
        wanted: DeviceName = "cpu" if arguments.device == "auto" and this_rank()[1] > 1 else arguments.device
        self._device = compute_device(wanted, deterministic=experiment.deterministic, field=DEVICE)
        if self._device.type == "cpu" or this_rank()[1] == 1:
            self._determinism.begin(self._device)
        self._rest = Rest(self._device, self._kept)
        self._experiment = experiment
        self._base = Path(model_path)
        # Before the model is read: what cannot fit is refused with its arithmetic, not killed for memory minutes later.
        check_training(experiment.stages, self._base, str(self._device))
        model = load_model(self._base, self._device, trust_remote_code=self._trusted)
        # Once for each layout that a stage uses, with the longest text of all: stages differ in prefix sharing at most.
        for share in sorted({shares_prefixes(model, stage) for stage in experiment.stages}):
            longest = max(stage.model.max_model_len for stage in experiment.stages)
            try_forward(model, self._device, where=self._base, max_tokens=longest, share=share)
        lora = experiment.stages[0].model.lora
        if lora is None:
            self._policy = WholeModel(model, self._base, trust_remote_code=self._trusted)
        else:
            merged = arguments.lora_publish == "merged"
            self._policy = Adapter(model, self._base, lora, seed=experiment.seed, merged=merged)
        if not this_rank()[0]:
            try_description(model, self._base)
        # Last: layers that recompute are in training mode, and the first trial compares the model as explorers run it.
        if arguments.gradient_checkpointing:
            # Whoever asks for it has little memory and some time: holes between kept states would take half of it back.
            if self._device.type == "cpu":
                map_large_blocks(_MAPPED_SIZE_BYTES)
            recompute_layers(model)
            try_forward(model, self._device, where=self._base, max_tokens=TEXT_TOKENS, share=False)
        self._weights_changed()

    def stage_models(self, stage: StageSpec) -> TorchStageModels:
        """Returns the models of a stage on this device, with the policy loaded. Raises ConfigError."""
        return TorchStageModels.of(stage, self._open_policy, self._device)

    def learner_of_ranks(self, own: ModelLearner[PackedRows]) -> Learner[PackedRows]:
        """Returns the learner that divides work among all ranks, given this rank's own."""
        if this_rank()[1] == 1:
            return own
        parameters = own.models.policy.parameters
        critic = own.critic
        return DataParallel(own, parameters.values, None if critic is None else critic.model.parameters.values)

    def train(self, batch: TrainBatch) -> StepResult:
        """Takes the batch's optimizer steps; none, with weights and optimizer unchanged, if no step would be finite."""
        self._changes = 0
        try:
            with self._determinism.step():
                return super().train(batch)
        except RuntimeError as error:
            # Before a step was taken the batch has left no trace, and can be begun anew.
            if self._changes or not self._determinism.disable_if_unsupported(error):
                raise
            return super().train(batch)
        finally:
            # Activations are freed, but on a CPU they stay the C library's, while explorers may be short of memory.
            if self._device.type == "cpu":
                give_back()

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors for explorers by name, to be read before the next step, because they may share the
        weights' memory.
        """
        return dict(self._open_policy.published())

    def digest(self, form: Form) -> str:
        """Computes the digest of the current weights in the form."""
        with self._readable() as tensors:
            return self._digester.of(form, tensors)

    def snapshot(self) -> TorchSnapshot:
        """Returns a copy of the weights, in bfloat16 if all explorers run the model in bfloat16; tied weights stay
        tied.
        """
        with self._readable() as tensors:
            return TorchSnapshot.of(tensors, rounded=rounded_for(self._experiment, self._model, tensors))

    def spread(self) -> SpreadTensors:
        """Returns the current weights in parts, one share from each rank, in the dtypes of `snapshot`."""
        with self._readable() as tensors:
            return SpreadTensors(tensors, rounded=rounded_for(self._experiment, self._model, tensors))

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Restores the weights; with `stage`, begins the stage and restores its optimizer and reference."""
        # Awake first: restored numbers go into the memory that rest gives up.
        self.wake()
        super().load(folder, stage)

    def awake(self) -> AbstractContextManager[Any]:
        """Returns a context with all tensors on the device."""
        return self._rest.interrupted()

    def rest(self) -> None:
        """Moves all tensors to the host, so that others can use the device's memory; weights stay readable. No effect
        on a CPU.
        """
        self._rest.begin()

    def wake(self) -> None:
        """Moves all tensors back to the device, bit for bit. Raises DeviceMemoryError if there is no room."""
        self._rest.end()

    def _kept(self) -> Iterator[Tensor]:
        """Yields the engine's tensors on the device between two steps."""
        yield from self._model.parameters()
        yield from self._model.buffers()
        if self._learner is not None:
            yield from self._learner.resident()

    @contextmanager
    def _readable(self) -> Iterator[dict[str, Tensor]]:
        """Yields the tensors for explorers, from the host if the engine rests; an adapter wakes, because merging
        computes.
        """
        # A whole model at rest is read from its copies on the host; no memory of the device is asked for.
        if isinstance(self._open_policy, WholeModel):
            yield {name: self._rest.on_host(tensor) for name, tensor in self.tensors().items()}
        else:
            with self._rest.interrupted():
                yield self.tensors()

    @property
    def _model(self) -> Any:
        """The model under training."""
        return self._open_policy.model

    @property
    def _trusted(self) -> bool:
        """True if the experiment allows running code from the model's folder."""
        return self._experiment is not None and self._experiment.stages[0].model.trust_remote_code

    def _weights_changed(self) -> None:
        """Counts a change of the weights, and forgets the digests of the former ones."""
        super()._weights_changed()
        self._changes += 1
