"""`TinkerTrainerEngine` trains by runs at the service: opens, steps, saves and continues them.

A run is one adapter with its optimizer at the service. A run is never continued by another process: a successor begins
a new run from a saved state. A gradient left behind by a trainer without its step is therefore in no weights, and a
step whose event was not written is taken again, in another generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.errors import ConfigError, DataError, RftdError
from rftd.ops.releases import release_of
from rftd.storage.files.service_state import ServiceState
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.devices.device_memory import number_in, settings_of
from rftd.workers.engines.tinker.answers import path_of
from rftd.workers.engines.tinker.service import TinkerService, TrainingRun
from rftd.workers.engines.tinker.trainer.arguments import OPTIMIZERS, TinkerTrainerArgs
from rftd.workers.engines.tinker.trainer.learner import ServiceRows, TinkerLearner
from rftd.workers.engines.tinker.trainer.own_losses import service_loss
from rftd.workers.engines.tinker.watch import ServiceWatch
from rftd.workers.learning.engine import StepResult, TrainBatch
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.stage_training import StageTraining
from rftd.workers.learning.stage.trainer_state import TrainerState
from rftd.workers.weights.channel import NAME
from rftd.workers.weights.service import opaque_checksum
from rftd.workers.weights.tensor_bytes import Weights

SERVICE_NAME: Final = "tinker"
"""Name of the service in the states of checkpoints."""


class TinkerSnapshot:
    """Implements `WeightsSnapshot` and `NamedSnapshot`: weights saved at the service under a name, as of the
    request.
    """

    kind = NAME
    """Kind of the snapshot: a name at the service."""
    exact = True
    """True: nothing is rounded."""

    def __init__(self, path: Callable[[], str], checksum: str) -> None:
        """`path` waits for the weights' path, requested already; `checksum` is their opaque checksum."""
        self._path = path
        self._checksum = checksum

    def weights(self) -> Weights:
        """Raises ConfigError: the weights stay at the service."""
        raise ConfigError(
            "weights trained by Tinker stay at the service",
            field="synchronizer.sync_method",
            fix="write synchronizer.sync_method: service",
        )

    def name(self) -> str:
        """Waits for and returns the weights' path for samplers."""
        return self._path()

    def checksum(self) -> str:
        """Returns the opaque checksum of the weights."""
        return self._checksum


class TinkerTrainerEngine:
    """Implements `TrainerEngine`, `RemoteEngine` and `WeightService` with runs at the Tinker service."""

    deterministic = False
    """False: the service does not guarantee equal bits."""

    def __init__(self, arguments: TinkerTrainerArgs, connect: Callable[[], TinkerService]) -> None:
        """`connect` returns the service, and is called when the engine is opened."""
        self._args = arguments
        self._connect = connect
        self._service: TinkerService | None = None
        self._watch: ServiceWatch | None = None
        self._run: TrainingRun | None = None
        self._fresh = True
        """True while the run's optimizer has taken no step, and was loaded with none."""
        self._reference_path = ""
        """Path at the service of the stage's reference weights; empty: the base model."""
        self._checksum = ""
        self._steps = 0
        self._saved = 0
        self._seed = 0
        self._vocabulary_tokens = 0
        self._state_outside_stage = TrainerState(stage="", step=0, stage_step=0, optimizer="")
        """State outside any stage."""
        self._training: StageTraining[ServiceRows] | None = None

    def environment(self) -> dict[str, str]:
        """Returns the package's release, the model and the adapter; the service's own software is unknown here."""
        shape = self._args.shape
        layer_kinds = [layer_kind for layer_kind in ("mlp", "attn", "unembed") if getattr(shape, f"train_{layer_kind}")]
        return {
            "engine": SERVICE_NAME,
            "tinker": release_of("tinker"),
            "base_model": self._args.base_model,
            "adapter": f"rank {shape.rank} of {', '.join(layer_kinds) or 'nothing'}",
        }

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Connects to the service. The run begins at its first use.

        Raises ConfigError without a key, or without the package.
        """
        self.close()
        self._service = self._connect()
        self._watch = ServiceWatch(self._service.answers, f"the Tinker service{_at(self._args.base_url)}")
        self._seed = experiment.seed
        # The service refuses unknown tokens only after minutes; a wrong tokenizer is reported at once.
        self._vocabulary_tokens = number_in(settings_of(Path(model_path)), "vocab_size") or 1 << 31
        self._state_outside_stage = TrainerState(stage="", step=0, stage_step=0, optimizer="")
        # The adapter changes nothing before its first step, so all fresh adapters of one shape are the same weights.
        encoded = msgspec.json.encode(self._args.shape).decode()
        self._checksum = opaque_checksum("base", self._args.base_model, encoded)

    def begin_stage(self, stage: StageSpec) -> None:
        """Begins the stage's objective on a run with the current weights and a fresh optimizer. Raises ConfigError for
        an unsupported optimizer.
        """
        objective = Objective.of(stage.algorithm, stage.sources)
        run = self._open_run()
        if not self._fresh:
            # The only way to a fresh optimizer is a new run from the current weights.
            with self._calling() as service:
                path = self._save_run(run, "stage")
                self._run = run = service.run_from(path, self._args.base_model, optimizer=False)
                self._fresh = True
                self._delete(path)
        self._reference_path = self._save_reference(run, objective, self._state.step)
        self._set_up(stage, objective, run, self._state.step)

    def _save_reference(self, run: TrainingRun, objective: Objective, step: int) -> str:
        """Saves the weights at a stage's beginning, for later continuations of the stage, and returns their path.

        Empty for the base model, always available at the service, and for objectives without a reference.
        """
        if not (step and objective.needs_reference):
            return ""
        with self._calling():
            return self._save_run(run, "reference")

    def _set_up(self, stage: StageSpec, objective: Objective, run: TrainingRun, step: int) -> None:
        """Prepares the training of the stage on `run`. Raises ConfigError for an optimizer unknown to the service."""
        if stage.algorithm.optimizer.optimizer_type not in OPTIMIZERS:
            raise ConfigError(
                f"the optimizer is {stage.algorithm.optimizer.optimizer_type}, and the Tinker service has AdamW",
                field="algorithm.optimizer.optimizer_type",
                fix="write adam",
            )
        learner = TinkerLearner(
            run,
            stage.algorithm.optimizer,
            service_loss(objective),
            vocabulary_tokens=self._vocabulary_tokens,
            reference=self._reference() if objective.needs_reference else None,
            stepped=self._count_step,
            cleared=self._run_without_gradient,
        )
        state = TrainerState(
            stage=stage.name, step=step, stage_step=0, optimizer=stage.algorithm.optimizer.optimizer_type
        )
        self._training = StageTraining(stage, objective, learner, state, seed=self._seed)

    def _reference(self) -> TrainingRun:
        """Creates a run of the stage's reference weights, for log-probabilities alone, without steps.

        An adapter without a step equals the base model. Raises DataError if the weights are deleted at the service.
        """
        with self._calling() as service:
            if self._reference_path:
                return service.run_from(self._reference_path, self._args.base_model, optimizer=False)
            return service.new_run(self._args.base_model, self._args.shape)

    def train(self, batch: TrainBatch) -> StepResult:
        """Takes the batch's optimizer steps at the service; none if they would not be finite.

        Raises WorkError if the service failed: the run is then abandoned.
        """
        assert self._training is not None, "train before begin_stage"
        with self._calling():
            return self._training.train(batch)

    def checksum(self) -> str:
        """Returns an opaque checksum, different after each optimizer step of any process."""
        return self._checksum

    def sha256(self) -> str:
        """Returns the opaque checksum too, because weights at the service cannot be digested."""
        return self._checksum

    def snapshot(self) -> TinkerSnapshot:
        """Saves the current weights at the service, before its next step."""
        run = self._open_run()
        name = self._next_name(f"v{self._state.step}")
        saved = run.save_weights(name)
        return TinkerSnapshot(lambda: path_of(saved(), run.id, name), self._checksum)

    def save(self, folder: Path, *, hf: bool) -> None:
        """Saves weights and optimizer at the service, and writes their name; there are no files for transformers."""
        actor = folder / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        run = self._open_run()
        with self._calling():
            path = self._save_run(run, f"step-{self._state.step}")
        ServiceState(
            service=SERVICE_NAME,
            base_model=self._args.base_model,
            path=path,
            checksum=self._checksum,
            reference=self._reference_path,
        ).write(folder)
        # Last: a folder without trainer_state.json is not a checkpoint for `load`.
        self._state.write(actor)

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Begins a new run from the folder's state; with the optimizer if `stage` is the saved stage.

        Raises DataError for another model's checkpoint, and for a state deleted at the service.
        """
        state = TrainerState.read(folder / "actor")
        saved = ServiceState.read(folder)
        if (saved.service, saved.base_model) != (SERVICE_NAME, self._args.base_model):
            raise DataError(
                f"the checkpoint is of {saved.base_model} at {saved.service}, and {self._args.base_model} is trained",
                where=str(folder),
                fix="resume with the model of the checkpoint",
            )
        objective = None if stage is None else Objective.of(stage.algorithm, stage.sources)
        continues = stage is not None and state.stage == stage.name
        with self._calling() as service:
            self._run = service.run_from(saved.path, saved.base_model, optimizer=continues)
        self._fresh = not continues
        self._checksum = saved.checksum
        self._training = None
        self._state_outside_stage = TrainerState(stage="", step=state.step, stage_step=0, optimizer="")
        if stage is not None and objective is not None:
            self._reference_path = saved.reference
            if not continues:
                self._reference_path = self._save_reference(self._run, objective, state.step)
            elif objective.needs_reference and not saved.reference and state.step > state.stage_step:
                raise ConfigError(
                    f"stage {stage.name} began with the weights of step {state.step - state.stage_step}, which it "
                    "did not save as a reference: the service no longer has them",
                    field="algorithm.kl_loss_fn_args.kl_coef",
                    fix="write 0.0, or fork from the end of the previous stage",
                )
            self._set_up(stage, objective, self._run, state.step)
            if continues and self._training is not None:
                self._training.state = msgspec.structs.replace(
                    state, optimizer=stage.algorithm.optimizer.optimizer_type
                )

    @property
    def waits_for(self) -> str:
        """Name of the service while it does not answer a call; else empty."""
        return self._watch.waits_for if self._watch is not None else ""

    def forget(self, state: ServiceState) -> None:
        """Deletes a saved state at the service that no checkpoint refers to any longer."""
        if state.service == SERVICE_NAME:
            self._delete(state.path)

    def holds_name(self, name: str) -> bool:
        """False if the service answers that it has no weights under the name."""
        return self._service is None or self._service.has(name)

    def forget_name(self, name: str) -> None:
        """Deletes weights at the service that no explorer needs any longer."""
        self._delete(name)

    def close(self) -> None:
        """Ends the session at the service and forgets the run. Idempotent."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._service is not None:
            self._service.close()
            self._service = None
        self._run = None
        self._training = None
        self._fresh = True
        self._reference_path = ""

    def _run_without_gradient(self) -> TrainingRun:
        """Begins a run with the current weights and optimizer, and without the gradient accumulated at the service."""
        assert self._run is not None and self._service is not None
        path = self._save_run(self._run, "cleared")
        self._run = self._service.run_from(path, self._args.base_model, optimizer=True)
        self._delete(path)
        return self._run

    def _save_run(self, run: TrainingRun, label: str) -> str:
        """Saves the current weights and optimizer at the service, and returns their path."""
        name = self._next_name(label)
        return path_of(run.save_state(name), run.id, name)

    def _delete(self, path: str) -> None:
        """Deletes a path at the service; errors are ignored, because training does not depend on it."""
        # Undeleted states cost storage at the service; training does not depend on them.
        with suppress(RftdError):
            if self._service is not None:
                self._service.delete(path)

    def _open_run(self) -> TrainingRun:
        """Returns the current run, begun from the base model at the first call."""
        if self._run is None:
            with self._calling() as service:
                self._run = service.new_run(self._args.base_model, self._args.shape)
        return self._run

    @contextmanager
    def _calling(self) -> Iterator[TinkerService]:
        """Yields the service, and watches for missing answers within the context."""
        assert self._service is not None and self._watch is not None, "used before open"
        with self._watch.call():
            yield self._service

    def _count_step(self) -> None:
        """Records an optimizer step: the opaque checksum changes."""
        assert self._run is not None
        self._steps += 1
        self._fresh = False
        self._checksum = opaque_checksum(self._checksum, self._run.id, str(self._steps))

    def _next_name(self, label: str) -> str:
        """Returns a name at the service not used by this engine before."""
        # A run saves once under a name: the number makes each name unique.
        self._saved += 1
        return f"{label}-{self._saved}"

    @property
    def _state(self) -> TrainerState:
        """Stage and step of the current weights."""
        return self._state_outside_stage if self._training is None else self._training.state


def _at(base_url: str) -> str:
    """Returns " at ADDRESS" for a message; empty for the service's default address."""
    return f" at {base_url}" if base_url else ""
