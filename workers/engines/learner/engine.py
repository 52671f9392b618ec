"""`ModelEngine`: the common part of trainer engines whose models run in processes of rftd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from rftd.ops.processors import threads_of
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.engines.learner.backend import StageModels
from rftd.workers.engines.learner.learner import ModelLearner
from rftd.workers.engines.learner.opening import Determinism
from rftd.workers.engines.learner.optimizer import Parameters
from rftd.workers.engines.ranks.collectives import raise_on_all_ranks, this_rank
from rftd.workers.learning.engine import StepResult, TrainBatch
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import Learner, M
from rftd.workers.learning.stage.stage_training import StageTraining
from rftd.workers.learning.stage.trainer_state import TrainerState
from rftd.workers.learning.term_notes import TermNotes
from rftd.workers.weights.checksum import Form, form_of
from rftd.workers.weights.tensor_digests import TensorDigests


class Policy(Protocol):
    """A model and its trained parameters; all ranks make equal calls."""

    @property
    def model(self) -> Any:
        """The model that computes forward passes, with gradients for the trained parameters."""
        ...

    def parameters(self) -> Parameters:
        """Returns the trained parameters by name."""
        ...

    def published(self) -> Mapping[str, Tensor]:
        """Returns the tensors for explorers by name, not copied where they exist already; of a spread tensor, this
        rank's part.
        """
        ...

    def write(self, actor: Path, *, hf: bool, writers: int) -> None:
        """Writes the weights into a checkpoint's folder `actor`, and with `hf` a model for transformers.

        At most `writers` ranks write at a time; 0: all.
        """
        ...

    def restore(self, actor: Path) -> None:
        """Loads the weights written by `write`. Raises DataError, on all ranks, for missing files or another
        model's.
        """
        ...


P = TypeVar("P", bound=Policy)
"""Type of an engine's policy."""


class ModelEngine(ABC, Generic[P, M]):
    """Implements stages, digests and checkpoints of `TrainerEngine`; all ranks make equal calls.

    Weights and optimizer are float32, even in a stage with forward passes in bfloat16.
    """

    def __init__(self, *, threads: int = 1) -> None:
        """Makes an engine without a model, with `threads` threads for digests."""
        self._threads = threads
        self._device = torch.device("cpu")
        self._experiment: ExperimentSpec | None = None
        self._base = Path()
        self._policy: P | None = None
        self._learner: ModelLearner[M] | None = None
        self._training: StageTraining[M] | None = None
        self._outside = TrainerState(stage="", step=0, stage_step=0, optimizer="")
        """The state before the first stage, and after loading weights only."""
        self._digester = TensorDigests(threads=threads)
        self._digests: dict[Form, str] = {}
        """Digests of the current weights already computed, by form."""
        self._determinism = Determinism()
        self._notes: TermNotes | None = None
        """Notes to be filled by the present call of `train`; None if no notes are requested."""

    @property
    def deterministic(self) -> bool:
        """True on a CPU, for a fixed number of ranks; False on a GPU, where torch's deterministic kernels do not
        guarantee equal bits.
        """
        return self._device.type == "cpu"

    @abstractmethod
    def stage_models(self, stage: StageSpec) -> StageModels[M]:
        """Returns the models of a stage, with the policy loaded. Raises ConfigError."""

    @abstractmethod
    def digest(self, form: Form) -> str:
        """Computes the digest of the current weights in the form."""

    def learner_of_ranks(self, own: ModelLearner[M]) -> Learner[M]:
        """Returns the learner that divides work among all ranks, given this rank's own."""
        return own

    def awake(self) -> AbstractContextManager[Any]:
        """Returns a context in which all tensors are on the device; without offloading, the tensors are there
        always.
        """
        return nullcontext()

    def begin_stage(self, stage: StageSpec) -> None:
        """Begins a stage: its algorithm and threads, a fresh optimizer, and the current weights as its reference."""
        torch.set_num_threads(threads_of(stage.trainer.threads))
        step = self._state.step
        # The objective first: a wrong argument is found in milliseconds, not after the models are loaded.
        objective = Objective.of(stage.algorithm, stage.sources)
        models = self.stage_models(stage)
        # Released first: the earlier stage's models are as large as the new ones.
        self._learner = None
        self._training = None
        self._outside = TrainerState(stage="", step=step, stage_step=0, optimizer="")
        self._learner = ModelLearner.begin(stage, objective, models, self._weights_changed)
        state = TrainerState(
            stage=stage.name, step=step, stage_step=0, optimizer=stage.algorithm.optimizer.optimizer_type
        )
        learner = self.learner_of_ranks(self._learner)
        self._training = StageTraining(stage, objective, learner, state, seed=self._seed)

    def train(self, batch: TrainBatch) -> StepResult:
        """Takes the batch's optimizer steps; none, with weights and optimizer unchanged, if no step would be finite."""
        assert self._training is not None, "train before begin_stage"
        return self._training.train(batch, self._notes)

    def train_noting(self, batch: TrainBatch, notes: TermNotes) -> StepResult:
        """Trains a batch as `train` does, and fills the notes with the terms of the objective at each token."""
        self._notes = notes
        try:
            return self.train(batch)
        finally:
            self._notes = None

    def checksum(self) -> str:
        """Returns the checksum of the weights, computed once per step: xxh3 on a CPU, bit sums on a GPU."""
        return self._digest(self._form)

    def sha256(self) -> str:
        """Returns the sha256 of all tensors' sha256 digests, computed once per step."""
        return self._digest("tensors")

    def digest_like(self, recorded: str) -> str:
        """Returns the digest of the weights in the form of `recorded`, a digest written by a trainer on any device."""
        return self._digest(form_of(recorded))

    def save(self, folder: Path, *, hf: bool) -> None:
        """Writes a checkpoint: in `actor` weights or adapter, optimizer, reference and trainer_state.json; in `critic`
        the critic, if any.
        """
        actor = folder / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        with self.awake():
            self._open_policy.write(actor, hf=hf, writers=0 if self._learner is None else self._learner.models.writers)
            if self._learner is not None:
                self._learner.write(folder)
        # Last: a folder without trainer_state.json is no checkpoint that `load` would take.
        if this_rank()[0] == 0:
            self._state.write(actor)

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Restores the weights; with `stage`, begins the stage and restores its optimizer and reference.

        If the checkpoint's optimizer is of another kind, it begins afresh; without a saved reference, the restored
        weights are the reference.
        """
        actor = folder / "actor"
        # What one rank cannot read is an error of all, and none of them waits for it.
        with raise_on_all_ranks():
            state = TrainerState.read(actor)
        self._open_policy.restore(actor)
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
        assert self._training is not None
        self._learner.restore(folder, optimizer=state.optimizer)
        self._training.state = msgspec.structs.replace(state, optimizer=stage.algorithm.optimizer.optimizer_type)

    def close(self) -> None:
        """Releases the model, and restores torch's global switches. Idempotent."""
        self._determinism.put_back()
        self._policy = None
        self._learner = None
        self._training = None

    @property
    def _form(self) -> Form:
        """Form of the checksum on this device: `xxh3` on a CPU, `bits` on a GPU."""
        return "xxh3" if self._device.type == "cpu" else "bits"

    def _digest(self, form: Form) -> str:
        """Returns the digest of the current weights in the form, from a cache until the weights change."""
        if form not in self._digests:
            self._digests[form] = self.digest(form)
        return self._digests[form]

    @property
    def _state(self) -> TrainerState:
        """Stage and step of the current weights."""
        return self._outside if self._training is None else self._training.state

    @property
    def _open_policy(self) -> P:
        """The loaded policy. Raises AssertionError before `open`."""
        assert self._policy is not None, "used before open"
        return self._policy

    @property
    def _seed(self) -> int:
        """Seed of the experiment; 0 before `open`."""
        return self._experiment.seed if self._experiment is not None else 0

    def _weights_changed(self) -> None:
        """Forgets the digests of the former weights."""
        self._digests.clear()
