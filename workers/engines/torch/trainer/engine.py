"""`TorchTrainerEngine`: the optimizer steps of a batch on one device, with torch and transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from rftd.ops.cycles import give_back, map_large_blocks
from rftd.ops.processors import threads_of
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.devices.compute_device import DeviceName, compute_device
from rftd.workers.engines.ranks.collectives import this_rank
from rftd.workers.engines.torch.trainer.adapter import Adapter
from rftd.workers.engines.torch.trainer.arguments import DEVICE, parse
from rftd.workers.engines.torch.trainer.data_parallel import DataParallel
from rftd.workers.engines.torch.trainer.learner import TorchLearner, shares_prefixes
from rftd.workers.engines.torch.trainer.model import load_model, recompute_layers, try_description
from rftd.workers.engines.torch.trainer.opening import Determinism, check_training, environment
from rftd.workers.engines.torch.trainer.packing import PackedRows
from rftd.workers.engines.torch.trainer.policy import Policy, WholeModel
from rftd.workers.engines.torch.trainer.snapshot import SpreadTensors, TorchSnapshot, rounded_for
from rftd.workers.engines.torch.trainer.trial import TEXT_TOKENS, try_forward
from rftd.workers.learning.engine import StepResult, TrainBatch
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import Learner
from rftd.workers.learning.stage.stage_training import StageTraining
from rftd.workers.learning.stage.trainer_state import TrainerState
from rftd.workers.weights.checksum import Form, form_of
from rftd.workers.weights.parked_tensors import Rest
from rftd.workers.weights.tensor_digests import TensorDigests

_MAPPED_SIZE_BYTES: Final = 4 * 1024**2


class TorchTrainerEngine:
    """Implements `TrainerEngine`. Weights and optimizer are float32; bfloat16 is a matter of the forward pass."""

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads
        self._device = torch.device("cpu")
        self._experiment: ExperimentSpec | None = None
        self._base = Path()
        self._policy: Policy | None = None
        self._learner: TorchLearner | None = None
        self._training: StageTraining[PackedRows] | None = None
        self._outside = TrainerState(stage="", step=0, stage_step=0, optimizer="")
        """The state where no stage was begun."""
        self._digester = TensorDigests(threads=threads)
        self._digests: dict[Form, str] = {}
        """The digests of the weights as they are, by form."""
        self._changes = 0
        """Changes of the weights since the last batch began."""
        self._determinism = Determinism()
        self._rest = Rest(self._device, self._kept)

    @property
    def deterministic(self) -> bool:
        """True on a CPU. On one GPU kernels are deterministic where torch has such, which is no promise."""
        return self._device.type == "cpu"

    def environment(self) -> dict[str, str]:
        """The releases, threads, device and processor that the bits of the weights may depend on."""
        return environment(self._device, threads=self._threads, deterministic=self._determinism.on)

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Loads the base model, and pins threads and algorithms of this process until `close`.

        Raises DataError if it cannot be read, or if its own forward gives other log-probabilities than the engine's;
        DeviceMemoryError if a stage cannot fit.
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

    def begin_stage(self, stage: StageSpec) -> None:
        """Takes the stage's algorithm and threads, a fresh optimizer, and the present weights for its reference."""
        torch.set_num_threads(threads_of(stage.trainer.threads))
        step = self._state.step
        # The objective first: a wrong argument is found in milliseconds, not after the models are loaded.
        objective = Objective.of(stage.algorithm)
        self._learner = TorchLearner.begin(stage, objective, self._opened, self._device, self._weights_changed)
        state = TrainerState(
            stage=stage.name, step=step, stage_step=0, optimizer=stage.algorithm.optimizer.optimizer_type
        )
        self._training = StageTraining(stage, objective, self._over_ranks(), state, seed=self._seed)

    def _over_ranks(self) -> Learner[PackedRows]:
        """The learner; of several ranks one that divides the work among them."""
        own = self._learner
        assert own is not None
        if this_rank()[1] == 1:
            return own
        critic = own.critic
        return DataParallel(own, own.policy.parameters().values, None if critic is None else critic.parameters)

    def train(self, batch: TrainBatch) -> StepResult:
        """Takes the batch's optimizer steps; or none, weights and optimizer untouched, if none would be finite."""
        assert self._training is not None, "train before begin_stage"
        self._changes = 0
        try:
            with self._determinism.step():
                return self._training.train(batch)
        except RuntimeError as error:
            # Before a step was taken the batch has left no trace, and can be begun anew.
            if self._changes or not self._determinism.given_up(error):
                raise
            return self._training.train(batch)
        finally:
            # Activations are freed, but on a CPU they stay the C library's, while explorers may be short of memory.
            if self._device.type == "cpu":
                give_back()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that explorers get, by name; not always copies, so read them before the next step."""
        return self._opened.published()

    def checksum(self) -> str:
        """The checksum of the weights, computed once per step where they lie: on a CPU by xxh3, else by bit sums."""
        return self._digest(self._form)

    def sha256(self) -> str:
        """The sha256 of the tensors' sha256, computed once per step."""
        return self._digest("tensors")

    def digest_like(self, recorded: str) -> str:
        """The digest of the weights in the form of one that was recorded, by whatever device and release."""
        return self._digest(form_of(recorded))

    @property
    def _form(self) -> Form:
        return "xxh3" if self._device.type == "cpu" else "bits"

    def _digest(self, form: Form) -> str:
        if form not in self._digests:
            with self._readable() as tensors:
                self._digests[form] = self._digester.of(form, tensors)
        return self._digests[form]

    def snapshot(self) -> TorchSnapshot:
        """A copy of the weights, in bfloat16 where explorers run the model in it; tied ones stay tied."""
        with self._readable() as tensors:
            return TorchSnapshot.of(tensors, rounded=rounded_for(self._experiment, self._model, tensors))

    def spread(self) -> SpreadTensors:
        """The weights as they are, of which each rank gives a share; rounded as `snapshot` rounds them."""
        with self._readable() as tensors:
            return SpreadTensors(tensors, rounded=rounded_for(self._experiment, self._model, tensors))

    def save(self, folder: Path, *, hf: bool) -> None:
        """Writes `actor`: weights or adapter, each once, optimizer, reference, step; and `critic` where there is
        one."""
        actor = folder / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        with self._rest.interrupted():
            self._opened.write(actor, hf=hf)
            if self._learner is not None:
                self._learner.write(folder)
        # Last: a folder without trainer_state.json is no checkpoint that `load` would take.
        if this_rank()[0] == 0:
            self._state.write(actor)

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Restores the weights; and with `stage`, begun here, the optimizer and reference saved in it.

        A stage that goes on with another optimizer begins a fresh one; one that had no reference takes these weights.
        """
        actor = folder / "actor"
        state = TrainerState.read(actor)
        self.wake()
        # Awake first: restored numbers go into the memory that rest gives up.
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
        assert self._learner is not None and self._training is not None
        self._learner.restore(folder, optimizer=state.optimizer)
        self._training.state = msgspec.structs.replace(state, optimizer=stage.algorithm.optimizer.optimizer_type)

    def rest(self) -> None:
        """Leaves the device's memory to others; weights are read from the host then. On a CPU nothing changes."""
        self._rest.begin()

    def wake(self) -> None:
        """Takes the memory back, bit for bit. Raises DeviceMemoryError if others have it."""
        self._rest.end()

    def close(self) -> None:
        """Releases the model, and puts torch's switches back. Idempotent."""
        self._determinism.put_back()
        self._policy = None
        self._learner = None
        self._training = None

    def _kept(self) -> Iterator[Tensor]:
        """The tensors that the engine keeps on its device between two steps."""
        yield from self._model.parameters()
        yield from self._model.buffers()
        if self._learner is not None:
            yield from self._learner.kept()

    @contextmanager
    def _readable(self) -> Iterator[dict[str, Tensor]]:
        """The tensors that explorers get, also at rest: merged weights of an adapter are computed, and so awake."""
        # A whole model at rest is read from its copies on the host; no memory of the device is asked for.
        if isinstance(self._opened, WholeModel):
            yield {name: self._rest.on_host(tensor) for name, tensor in self.tensors().items()}
        else:
            with self._rest.interrupted():
                yield self.tensors()

    @property
    def _state(self) -> TrainerState:
        return self._outside if self._training is None else self._training.state

    @property
    def _opened(self) -> Policy:
        assert self._policy is not None, "used before open"
        return self._policy

    @property
    def _model(self) -> Any:
        return self._opened.model

    @property
    def _trusted(self) -> bool:
        return self._experiment is not None and self._experiment.stages[0].model.trust_remote_code

    @property
    def _seed(self) -> int:
        return self._experiment.seed if self._experiment is not None else 0

    def _weights_changed(self) -> None:
        self._digests.clear()
        self._changes += 1
