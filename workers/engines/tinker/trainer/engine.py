"""`TinkerTrainerEngine`: runs at the service, opened, stepped, saved and gone on from.

A run is one adapter with its optimizer at the service. It is never taken up by another process: who goes on begins one
of its own from a saved state. So a gradient that a trainer left behind without its step is in nobody's weights, and a
step whose event was not written is taken again, in another generation (rule 8).
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

NAME_OF: Final = "tinker"


class TinkerSnapshot:
    """Implements `WeightsSnapshot` and `NamedSnapshot`: asked for before the next step, and so of these weights."""

    kind = NAME
    exact = True

    def __init__(self, path: Callable[[], str], checksum: str) -> None:
        self._path = path
        self._checksum = checksum

    def weights(self) -> Weights:
        """Raises ConfigError: they stay at the service."""
        raise ConfigError(
            "weights that Tinker trains stay there",
            field="synchronizer.sync_method",
            fix="write synchronizer.sync_method: service",
        )

    def name(self) -> str:
        """The path under which samplers load them, once they can."""
        return self._path()

    def checksum(self) -> str:
        """The opaque checksum of these weights."""
        return self._checksum


class TinkerTrainerEngine:
    """Implements `TrainerEngine`, `RemoteEngine` and `WeightService`."""

    deterministic = False

    def __init__(self, arguments: TinkerTrainerArgs, connect: Callable[[], TinkerService]) -> None:
        """`connect` gives the service; it is asked when the engine is opened."""
        self._args = arguments
        self._connect = connect
        self._service: TinkerService | None = None
        self._watch: ServiceWatch | None = None
        self._run: TrainingRun | None = None
        self._fresh = True
        """True while the run's optimizer has taken no step, and was loaded with none."""
        self._reference_path = ""
        """The weights that the stage compares with, at the service; empty: the base model."""
        self._checksum = ""
        self._steps = 0
        self._saved = 0
        self._seed = 0
        self._vocabulary_tokens = 0
        self._outside = TrainerState(stage="", step=0, stage_step=0, optimizer="")
        """The state where no stage was begun."""
        self._training: StageTraining[ServiceRows] | None = None

    def environment(self) -> dict[str, str]:
        """The package's release, the model and the adapter; what computes at the service nobody here knows."""
        shape = self._args.shape
        parts = [part for part in ("mlp", "attn", "unembed") if getattr(shape, f"train_{part}")]
        return {
            "engine": NAME_OF,
            "tinker": release_of("tinker"),
            "base_model": self._args.base_model,
            "adapter": f"rank {shape.rank} of {', '.join(parts) or 'nothing'}",
        }

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Finds the way to the service. The run begins with the first thing that needs one.

        Raises ConfigError without a key, or without the package.
        """
        self.close()
        self._service = self._connect()
        self._watch = ServiceWatch(self._service.answers, f"the Tinker service{_at(self._args.base_url)}")
        self._seed = experiment.seed
        # The service refuses what it does not know, after minutes; a wrong tokenizer is told at once.
        self._vocabulary_tokens = number_in(settings_of(Path(model_path)), "vocab_size") or 1 << 31
        self._outside = TrainerState(stage="", step=0, stage_step=0, optimizer="")
        # The adapter changes nothing before its first step, so all fresh ones of one shape are the same weights.
        encoded = msgspec.json.encode(self._args.shape).decode()
        self._checksum = opaque_checksum("base", self._args.base_model, encoded)

    def begin_stage(self, stage: StageSpec) -> None:
        """Takes the stage's objective, and a run with a fresh optimizer; the weights go on."""
        objective = Objective.of(stage.algorithm)
        run = self._opened_run()
        if not self._fresh:
            # There is no other way to a fresh optimizer than a new run from the present weights.
            with self._calling() as service:
                path = self._kept(run, "stage")
                self._run = run = service.run_from(path, self._args.base_model, optimizer=False)
                self._fresh = True
                self._delete(path)
        self._reference_path = self._kept_reference(run, objective, self._state.step)
        self._set_up(stage, objective, run, self._state.step)

    def _kept_reference(self, run: TrainingRun, objective: Objective, step: int) -> str:
        """The path of the weights that a stage begins with, kept for as long as anybody may go on in it.

        Empty for the base model, which the service always has, and where nothing compares with them.
        """
        if not (step and objective.needs_reference):
            return ""
        with self._calling():
            return self._kept(run, "reference")

    def _set_up(self, stage: StageSpec, objective: Objective, run: TrainingRun, step: int) -> None:
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
            stepped=self._stepped,
            cleared=self._cleared,
        )
        state = TrainerState(
            stage=stage.name, step=step, stage_step=0, optimizer=stage.algorithm.optimizer.optimizer_type
        )
        self._training = StageTraining(stage, objective, learner, state, seed=self._seed)

    def _reference(self) -> TrainingRun:
        """A run of the weights that the stage began with, for log-probabilities alone: it takes no step.

        An adapter without a step changes nothing of the base model. Raises DataError if the service forgot the weights.
        """
        with self._calling() as service:
            if self._reference_path:
                return service.run_from(self._reference_path, self._args.base_model, optimizer=False)
            return service.new_run(self._args.base_model, self._args.shape)

    def train(self, batch: TrainBatch) -> StepResult:
        """Takes the batch's optimizer steps at the service; or none, if none would be finite.

        Raises WorkError if the service did not do it: the run is given up with it.
        """
        assert self._training is not None, "train before begin_stage"
        with self._calling():
            return self._training.train(batch)

    def checksum(self) -> str:
        """The opaque checksum: another one after each optimizer step that anybody took."""
        return self._checksum

    def sha256(self) -> str:
        """The same: nothing can be digested here."""
        return self._checksum

    def snapshot(self) -> TinkerSnapshot:
        """The present weights, which the service keeps before it takes the next step."""
        run = self._opened_run()
        name = self._next_name(f"v{self._state.step}")
        saved = run.save_weights(name)
        return TinkerSnapshot(lambda: path_of(saved(), run.id, name), self._checksum)

    def save(self, folder: Path, *, hf: bool) -> None:
        """Has the service keep weights and optimizer, and writes their name; there is nothing for transformers."""
        actor = folder / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        run = self._opened_run()
        with self._calling():
            path = self._kept(run, f"step-{self._state.step}")
        ServiceState(
            service=NAME_OF,
            base_model=self._args.base_model,
            path=path,
            checksum=self._checksum,
            reference=self._reference_path,
        ).write(folder)
        # Last: a folder without trainer_state.json is no checkpoint that `load` would take.
        self._state.write(actor)

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Begins a run of its own from what the folder names; with the optimizer if `stage` is the one saved in it.

        Raises DataError for another model's, and for what the service has forgotten.
        """
        state = TrainerState.read(folder / "actor")
        named = ServiceState.read(folder)
        if (named.service, named.base_model) != (NAME_OF, self._args.base_model):
            raise DataError(
                f"the checkpoint is of {named.base_model} at {named.service}, and {self._args.base_model} is trained",
                where=str(folder),
                fix="resume with the model that it was saved of",
            )
        objective = None if stage is None else Objective.of(stage.algorithm)
        goes_on = stage is not None and state.stage == stage.name
        with self._calling() as service:
            self._run = service.run_from(named.path, named.base_model, optimizer=goes_on)
        self._fresh = not goes_on
        self._checksum = named.checksum
        self._training = None
        self._outside = TrainerState(stage="", step=state.step, stage_step=0, optimizer="")
        if stage is not None and objective is not None:
            self._reference_path = named.reference
            if not goes_on:
                self._reference_path = self._kept_reference(self._run, objective, state.step)
            elif objective.needs_reference and not named.reference and state.step > state.stage_step:
                raise ConfigError(
                    f"stage {stage.name} began with the weights of step {state.step - state.stage_step}, which it "
                    "compared with nothing then: the service no longer has them",
                    field="algorithm.kl_loss_fn_args.kl_coef",
                    fix="write 0.0, or fork from the end of the stage before",
                )
            self._set_up(stage, objective, self._run, state.step)
            if goes_on and self._training is not None:
                self._training.state = msgspec.structs.replace(
                    state, optimizer=stage.algorithm.optimizer.optimizer_type
                )

    @property
    def waits_for(self) -> str:
        """The service, while it does not answer."""
        return self._watch.waits_for if self._watch is not None else ""

    def forget(self, state: ServiceState) -> None:
        """Has the service delete a state that no checkpoint names any more."""
        if state.service == NAME_OF:
            self._delete(state.path)

    def holds_name(self, name: str) -> bool:
        """False if the service says that it has no such weights."""
        return self._service is None or self._service.has(name)

    def forget_name(self, name: str) -> None:
        """Has the service delete weights that no explorer needs."""
        self._delete(name)

    def close(self) -> None:
        """Ends the session. Idempotent."""
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

    def _cleared(self) -> TrainingRun:
        """A run that goes on from weights and optimizer as they are, without the gradient that was added to them."""
        assert self._run is not None and self._service is not None
        path = self._kept(self._run, "cleared")
        self._run = self._service.run_from(path, self._args.base_model, optimizer=True)
        self._delete(path)
        return self._run

    def _kept(self, run: TrainingRun, what: str) -> str:
        """The path of weights and optimizer as they are, which the service keeps."""
        name = self._next_name(what)
        return path_of(run.save_state(name), run.id, name)

    def _delete(self, path: str) -> None:
        # What is not deleted costs room at the service; training does not wait for it.
        with suppress(RftdError):
            if self._service is not None:
                self._service.delete(path)

    def _opened_run(self) -> TrainingRun:
        if self._run is None:
            with self._calling() as service:
                self._run = service.new_run(self._args.base_model, self._args.shape)
        return self._run

    @contextmanager
    def _calling(self) -> Iterator[TinkerService]:
        assert self._service is not None and self._watch is not None, "used before open"
        with self._watch.call():
            yield self._service

    def _stepped(self) -> None:
        assert self._run is not None
        self._steps += 1
        self._fresh = False
        self._checksum = opaque_checksum(self._checksum, self._run.id, str(self._steps))

    def _next_name(self, what: str) -> str:
        # A run keeps what it saved under a name once: the number makes each its own.
        self._saved += 1
        return f"{what}-{self._saved}"

    @property
    def _state(self) -> TrainerState:
        return self._outside if self._training is None else self._training.state


def _at(base_url: str) -> str:
    return f" at {base_url}" if base_url else ""
