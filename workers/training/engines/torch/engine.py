"""`TorchTrainerEngine`: the optimizer steps of a batch on one device, with torch and transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rftd.ops.processors import threads_of
from rftd.streams.spec import ExperimentSpec, StageSpec
from rftd.workers.devices.compute_device import compute_device
from rftd.workers.training import nonfinite
from rftd.workers.training.engine import StepResult, TrainBatch, TrainSample
from rftd.workers.training.engines.torch import saving
from rftd.workers.training.engines.torch.adapter import Adapter
from rftd.workers.training.engines.torch.arguments import DEVICE, parse
from rftd.workers.training.engines.torch.model import load_model, recompute_layers
from rftd.workers.training.engines.torch.opening import Determinism, check_training, environment
from rftd.workers.training.engines.torch.optimizer import learning_rate
from rftd.workers.training.engines.torch.policy import Policy, WholeModel
from rftd.workers.training.engines.torch.snapshot import TorchSnapshot, rounded_for
from rftd.workers.training.engines.torch.stage import Stage, shares_prefixes
from rftd.workers.training.engines.torch.steps import BatchSteps
from rftd.workers.training.engines.torch.trial import try_forward
from rftd.workers.training.engines.torch.updates import Updates, check_logprobs, check_tokens
from rftd.workers.training.losses.kl_losses import KlLoss
from rftd.workers.weights.checksum import Form, form_of
from rftd.workers.weights.parked_tensors import Rest
from rftd.workers.weights.tensor_digests import TensorDigests


class TorchTrainerEngine:
    """Implements `TrainerEngine`. Weights and optimizer are float32; bfloat16 is a matter of the forward pass."""

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads
        self._device = torch.device("cpu")
        self._experiment: ExperimentSpec | None = None
        self._base = Path()
        self._policy: Policy | None = None
        self._stage: Stage | None = None
        self._state = saving.TrainerState(stage="", step=0, stage_step=0, optimizer="")
        self._digester = TensorDigests(threads=threads)
        self._digests: dict[Form, str] = {}
        """The digests of the weights as they are, by form."""
        self._determinism = Determinism()
        self._rest = Rest(self._device, self._kept)

    @property
    def deterministic(self) -> bool:
        """True on a CPU."""
        return self._device.type == "cpu"

    def environment(self) -> dict[str, str]:
        """The releases, threads, device and processor that the bits of the weights may depend on."""
        return environment(self._device, threads=self._threads)

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Loads the base model, and pins threads and algorithms of this process until `close`.

        Raises DataError if it cannot be read, or if its own forward gives other log-probabilities than the engine's;
        DeviceMemoryError if a stage cannot fit.
        """
        torch.set_num_threads(self._threads)
        arguments = parse(experiment.stages[0].trainer.engine_args)
        self._device = compute_device(arguments.device, deterministic=experiment.deterministic, field=DEVICE)
        self._determinism.set(self.deterministic)
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
        # Last: layers that recompute are in training mode, and the trial compares the model as explorers run it.
        if arguments.gradient_checkpointing:
            recompute_layers(model)
        self._weights_changed()

    def begin_stage(self, stage: StageSpec) -> None:
        """Takes the stage's algorithm and threads, a fresh optimizer, and the present weights for its reference."""
        torch.set_num_threads(threads_of(stage.trainer.threads))
        self._stage = Stage.begin(stage, self._learner, self._device)
        self._state = saving.TrainerState(
            stage=stage.name, step=self._state.step, stage_step=0, optimizer=stage.algorithm.optimizer.kind
        )

    def train(self, batch: TrainBatch) -> StepResult:
        """Takes the batch's optimizer steps; or none, weights and optimizer untouched, if none would be finite.

        The learning rate and KL coefficients hold for the whole batch, as in verl: their schedules count batches.
        """
        stage = self._begun()
        check_tokens(batch, self._model.get_input_embeddings().num_embeddings)
        updates = Updates.of(batch, stage, hidden_size=self._model.config.hidden_size, seed=self._seed)
        if stage.objective.needs_old_logprobs:
            check_logprobs(batch)
        rate = learning_rate(stage.spec.algorithm.optimizer, batch.stage_step, stage.spec.total_steps)
        reported: dict[str, float] = {}
        # Before the first forward pass: a NaN among the inputs would name the loss, and not the sample that brought it.
        reason = nonfinite.unusable(batch.samples)
        if not reason:
            steps = BatchSteps(
                policy=self._learner,
                stage=stage,
                device=self._device,
                batch=batch,
                updates=updates,
                rate=rate,
                kl_coef=self._kl_coef,
                penalty_coef=self._penalty_coef,
                on_change=self._weights_changed,
            )
            reported, reason = steps.take()
        if reason:
            return self._skip(batch, reason, rate)
        reported |= {"actor/lr": rate, "actor/micro_batches": float(updates.micro_batches)}
        if stage.objective.kl.coef > 0:
            reported["actor/kl_coef"] = self._kl_coef
        # Only now: a step that raises leaves the state, like weights and optimizer, to be loaded from the checkpoint.
        self._state = msgspec.structs.replace(
            self._state,
            step=batch.step,
            stage_step=batch.stage_step,
            kl_coef=_next(stage.objective.kl, self._kl_coef, reported.get("actor/kl_loss"), batch),
            kl_penalty_coef=_next(stage.objective.kl_penalty, self._penalty_coef, reported.get("critic/kl"), batch),
            nonfinite_in_a_row=0,
        )
        return StepResult(tokens=updates.tokens, metrics=batch_figures(batch.samples) | reported)

    def _skip(self, batch: TrainBatch, reason: str, rate: float) -> StepResult:
        """Counts the version, whose weights are those before. Raises NonFiniteLossError after too many in a row."""
        in_a_row = self._state.nonfinite_in_a_row + 1
        reason = nonfinite.skipped(in_a_row, self._begun().spec.trainer.max_nonfinite_steps, batch.step, reason)
        self._state = msgspec.structs.replace(
            self._state, step=batch.step, stage_step=batch.stage_step, nonfinite_in_a_row=in_a_row
        )
        figures = {name: value for name, value in batch_figures(batch.samples).items() if math.isfinite(value)}
        figures |= {"actor/lr": rate, "actor/nonfinite_in_a_row": float(in_a_row)}
        return StepResult(tokens=0, metrics=figures, skipped=reason)

    @property
    def _kl_coef(self) -> float:
        """The coefficient of the KL loss for the next step."""
        return self._begun().objective.kl.coef if self._state.kl_coef is None else self._state.kl_coef

    @property
    def _penalty_coef(self) -> float:
        """The coefficient of the KL penalty for the next step."""
        own = self._begun().objective.kl_penalty.coef
        return own if self._state.kl_penalty_coef is None else self._state.kl_penalty_coef

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that explorers get, by name; not always copies, so read them before the next step."""
        return self._learner.published()

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

    def save(self, folder: Path, *, hf: bool) -> None:
        """Writes `actor`: weights or adapter, each once, optimizer, reference, step; and `critic` where there is
        one."""
        actor = folder / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        with self._rest.interrupted():
            self._learner.write(actor, hf=hf)
            if self._stage is not None:
                self._stage.write(folder, self._learner)
        # Last: a folder without trainer_state.json is no checkpoint that `load` would take.
        saving.write_state(actor, self._state)

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Restores the weights; and with `stage`, begun here, the optimizer and reference saved in it.

        A stage that goes on with another optimizer begins a fresh one; one that had no reference takes these weights.
        """
        actor = folder / "actor"
        state = saving.read_state(actor)
        self.wake()
        # Awake first: restored numbers go into the memory that rest gives up.
        self._learner.restore(actor)
        self._weights_changed()
        self._stage = None
        self._state = saving.TrainerState(stage="", step=state.step, stage_step=0, optimizer="")
        if stage is None:
            return
        self.begin_stage(stage)
        if state.stage != stage.name:
            return
        self._begun().restore(folder, self._learner, optimizer=state.optimizer)
        self._state = msgspec.structs.replace(state, optimizer=stage.algorithm.optimizer.kind)

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
        self._stage = None

    def _kept(self) -> Iterator[Tensor]:
        """The tensors that the engine keeps on its device between two steps."""
        yield from self._model.parameters()
        yield from self._model.buffers()
        if self._stage is not None:
            yield from self._stage.kept()

    @contextmanager
    def _readable(self) -> Iterator[dict[str, Tensor]]:
        """The tensors that explorers get, also at rest: merged weights of an adapter are computed, and so awake."""
        # A whole model at rest is read from its copies on the host; no memory of the device is asked for.
        if isinstance(self._learner, WholeModel):
            yield {name: self._rest.on_host(tensor) for name, tensor in self.tensors().items()}
        else:
            with self._rest.interrupted():
                yield self.tensors()

    @property
    def _learner(self) -> Policy:
        assert self._policy is not None, "used before open"
        return self._policy

    @property
    def _model(self) -> Any:
        return self._learner.model

    @property
    def _trusted(self) -> bool:
        return self._experiment is not None and self._experiment.stages[0].model.trust_remote_code

    @property
    def _seed(self) -> int:
        return self._experiment.seed if self._experiment is not None else 0

    def _begun(self) -> Stage:
        assert self._stage is not None, "train before begin_stage"
        return self._stage

    def _weights_changed(self) -> None:
        self._digests.clear()


def _next(kl: KlLoss, coef: float, found: float | None, batch: TrainBatch) -> float | None:
    """The coefficient of the step after this one; None if it never changes."""
    return None if kl.rule is None or found is None else kl.rule.next(coef, found, len(batch.samples))


def batch_figures(samples: Sequence[TrainSample]) -> dict[str, float]:
    """The figures of a batch that need no model, under Trinity-RFT's names.

    They are lengths; and for rollouts rewards, advantages and staleness.
    """
    figures = {
        **_spread("prompt_length", [sample.prompt_tokens for sample in samples]),
        **_spread("response_length", [len(sample.loss_mask) for sample in samples]),
    }
    rollouts = [sample for sample in samples if sample.advantages is not None]
    if rollouts:
        trained = np.concatenate([sample.loss_mask for sample in rollouts]) != 0
        advantages = np.concatenate([sample.advantages for sample in rollouts if sample.advantages is not None])
        figures |= _spread("critic/rewards", [sample.reward for sample in rollouts])
        figures |= _spread("critic/advantages", advantages[trained])
        figures |= _spread("staleness_versions", [sample.staleness_versions for sample in rollouts])
    return figures


def _spread(name: str, values: ArrayLike) -> dict[str, float]:
    array = np.asarray(values, np.float64)
    if not array.size:
        return {}
    return {f"{name}/mean": float(array.mean()), f"{name}/max": float(array.max()), f"{name}/min": float(array.min())}
