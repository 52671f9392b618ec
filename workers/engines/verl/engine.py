"""`VerlTrainerEngine`: the optimizer steps of a batch on all ranks of a process group, with verl's engines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from rftd.ops.errors import ConfigError
from rftd.ops.processors import threads_of
from rftd.ops.releases import release_of
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TrainerSpec
from rftd.workers.devices.compute_device import compute_device
from rftd.workers.engines.ranks.collectives import together
from rftd.workers.engines.ranks.spool import SpreadWeights
from rftd.workers.engines.torch.trainer.model import try_description
from rftd.workers.engines.torch.trainer.opening import Determinism, environment
from rftd.workers.engines.torch.trainer.snapshot import TorchSnapshot, rounded_for
from rftd.workers.engines.verl import platform
from rftd.workers.engines.verl.arguments import DEVICE, VerlTrainerArgs, check_heads, parse
from rftd.workers.engines.verl.group import Shares, join_group
from rftd.workers.engines.verl.megatron.sizes import check_arguments, check_installed
from rftd.workers.engines.verl.shards import digest, one_by_one
from rftd.workers.learning.engine import StepResult, TrainBatch, WeightsSnapshot
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.stage_training import StageTraining
from rftd.workers.learning.stage.trainer_state import TrainerState
from rftd.workers.models.pretrained import outlined_model
from rftd.workers.weights.checksum import Form, form_of
from rftd.workers.weights.tensor_digests import TensorDigests

if TYPE_CHECKING:
    from rftd.workers.engines.verl.policy import SpreadPolicy


class VerlTrainerEngine:
    """Implements `TrainerEngine`; every method is called on all ranks, with the same arguments.

    A process that belongs to no group is a group of its own. Weights and optimizer are float32.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads
        self._device = torch.device("cpu")
        self._experiment: ExperimentSpec | None = None
        self._base = Path()
        self._policy: SpreadPolicy | None = None
        self._shares: Shares | None = None
        self._learner: Any = None
        self._training: StageTraining[Any] | None = None
        self._outside = TrainerState(stage="", step=0, stage_step=0, optimizer="")
        """The state where no stage was begun."""
        self._digester = TensorDigests(threads=threads)
        self._digests: dict[Form, str] = {}
        """The digests of the weights as they are, by form."""
        self._determinism = Determinism()

    @property
    def deterministic(self) -> bool:
        """True on CPUs, for one number of ranks."""
        return self._device.type == "cpu"

    def environment(self) -> dict[str, str]:
        """The releases, ranks, threads, device and processor that the bits of the weights may depend on."""
        found = environment(self._device, threads=self._threads, deterministic=self._determinism.on)
        found |= {"verl": release_of("verl"), "ranks": str(dist.get_world_size())}
        arguments = parse(self._trainer.engine_args)
        if arguments.strategy == "megatron":
            parts = str(arguments.tensor_model_parallel_size)
            found |= {"megatron-core": release_of("megatron-core"), "tensor_model_parallel_size": parts}
        return found

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Loads the base model and spreads it over the ranks.

        Raises DataError if it cannot be read, ConfigError for what verl cannot do here.
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
        _check(arguments, spec, self._device)
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
        from rftd.workers.engines.verl.model import Wrapping
        from rftd.workers.engines.verl.policy import WholePolicy

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

    def begin_stage(self, stage: StageSpec) -> None:
        """Takes the stage's algorithm and threads, a fresh optimizer, and the present weights for its reference."""
        from rftd.workers.engines.verl.learner import VerlLearner

        torch.set_num_threads(threads_of(stage.trainer.threads))
        step = self._state.step
        objective = Objective.of(stage.algorithm)
        assert self._shares is not None, "used before open"
        # First, for its models are as large as the new ones.
        self._learner = None
        self._learner = VerlLearner.begin(stage, objective, self._opened, self._shares, self._weights_changed)
        state = TrainerState(
            stage=stage.name, step=step, stage_step=0, optimizer=stage.algorithm.optimizer.optimizer_type
        )
        seed = self._experiment.seed if self._experiment is not None else 0
        self._training = StageTraining(stage, objective, self._learner, state, seed=seed)

    def train(self, batch: TrainBatch) -> StepResult:
        """Takes the batch's optimizer steps; or none, weights and optimizer untouched, if none would be finite."""
        assert self._training is not None, "train before begin_stage"
        return self._training.train(batch)

    def checksum(self) -> str:
        """The checksum of the weights, computed once per step: on CPUs by xxh3, else by bit sums."""
        return self._digest("xxh3" if self._device.type == "cpu" else "bits")

    def sha256(self) -> str:
        """The sha256 of the tensors' sha256, computed once per step."""
        return self._digest("tensors")

    def digest_like(self, recorded: str) -> str:
        """The digest of the weights in the form of one that was recorded, by whatever device and release."""
        return self._digest(form_of(recorded))

    def _digest(self, form: Form) -> str:
        if form not in self._digests:
            self._digests[form] = digest(form, self._opened.published(), self._digester)
        return self._digests[form]

    def snapshot(self) -> WeightsSnapshot:
        """A copy of the weights, in bfloat16 where explorers run the model in it; of several ranks see `spread`."""
        tensors = dict(one_by_one(self._opened.published()))
        return TorchSnapshot.of(tensors, rounded=rounded_for(self._experiment, self._opened.model.outline, tensors))

    def spread(self) -> SpreadWeights:
        """The weights as the controller of several ranks takes them: each rank gives what it holds."""
        return self._opened.spread(self._experiment)

    def save(self, folder: Path, *, hf: bool) -> None:
        """Writes `actor`: weights or adapter, each once, optimizer, reference, step; and `critic` where there is
        one."""
        actor = folder / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        self._opened.write(actor, hf=hf, strategy=parse(self._trainer.engine_args).save_strategy)
        if self._learner is not None:
            self._learner.write(folder)
        # Last: a folder without trainer_state.json is no checkpoint that `load` would take.
        if dist.get_rank() == 0:
            self._state.write(actor)

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Restores the weights; and with `stage`, begun here, the optimizer and reference saved in it.

        A stage that goes on with another optimizer begins a fresh one; one that had no reference takes these weights.
        """
        actor = folder / "actor"
        # What one rank cannot read is an error of all, and none of them waits for it.
        with together():
            state = TrainerState.read(actor)
        self._opened.restore(actor)
        self._weights_changed()
        self._learner = None
        self._training = None
        self._outside = TrainerState(stage="", step=state.step, stage_step=0, optimizer="")
        if stage is None:
            return
        self.begin_stage(stage)
        if state.stage != stage.name:
            return
        assert self._learner is not None
        self._learner.restore(folder, optimizer=state.optimizer)
        assert self._training is not None
        self._training.state = msgspec.structs.replace(state, optimizer=stage.algorithm.optimizer.optimizer_type)

    def close(self) -> None:
        """Releases the model, and puts torch's switches back. Idempotent."""
        self._determinism.put_back()
        self._policy = None
        self._learner = None
        self._training = None

    @property
    def _trainer(self) -> TrainerSpec:
        """Section `trainer` of the stage, or of the first one."""
        assert self._experiment is not None, "used before open"
        return self._experiment.stages[0].trainer if self._learner is None else self._learner.spec.trainer

    @property
    def _opened(self) -> SpreadPolicy:
        assert self._policy is not None, "used before open"
        return self._policy

    @property
    def _state(self) -> TrainerState:
        return self._outside if self._training is None else self._training.state

    def _weights_changed(self) -> None:
        self._digests.clear()


def _check(arguments: VerlTrainerArgs, stage: StageSpec, device: torch.device) -> None:
    """Raises ConfigError for what cannot be trained so on this device."""
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
