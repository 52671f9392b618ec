"""`TrainerEngine`: the interface between the trainer and an engine that computes gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from rftd.ops.errors import RankError
from rftd.storage.files.service_state import ServiceState
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.weights.channel import WeightsKind
from rftd.workers.weights.checksum import form_of
from rftd.workers.weights.tensor_bytes import Weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rftd.workers.learning.term_notes import TermNotes


class TrainSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of a batch as arrays: T tokens, the first P of the prompt, then R = T - P of the response."""

    tokens: NDArray[np.uint32]  # [T]
    prompt_tokens: int
    """Number of tokens of the prompt."""
    loss_mask: NDArray[np.uint8]  # [R], 1 for the trained tokens of the model, 2 for observed ones (`echo`), else 0
    logprobs: NDArray[np.float32] | None = None  # [R], under the weights that drew it; None for dataset rows
    advantages: NDArray[np.float32] | None = None  # [R]
    versions: NDArray[np.int64] | None = None  # [R], of the weights that drew each token; None: not known
    reward: float = 0.0
    """The response's reward."""
    group: int = -1
    """Index of the sample's group within the batch; -1 without a group."""
    temperatures: NDArray[np.float64] | None = None  # [R], at which each token was drawn; 0: greedily; None: 1
    staleness_versions: int = 0
    """Age of the sample, in weight versions, when the batch was planned."""
    role: str = ""
    """The agent behind the response, in a rollout of several agents."""
    expert: bool = False
    """True for rows of a dataset in a mixed batch."""
    pair: int = -1
    """Index of the sample's preference pair within the batch; -1 without a pair."""
    chosen: bool | None = None
    """True for the preferred response of a pair, or a desirable response; False for the rejected or undesirable one;
    None without a label.
    """


class TrainBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one training step, in the order of the plan."""

    step: int
    """The weight version produced by this step."""
    stage_step: int
    """The number of the step within its stage, from 1."""
    samples: Sequence[TrainSample]
    """Samples in the order of the plan."""
    items: Sequence[int] = ()
    """Number of samples of each item of the plan, in order; empty: one each, or two for a pair."""
    metrics: dict[str, float] = {}
    """Figures known before training, reported with the step."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a training step."""

    tokens: int
    """Number of trained tokens."""
    metrics: dict[str, float]
    """Figures of the step under Trinity-RFT's names: actor/pg_loss, actor/grad_norm, actor/lr, ..."""
    skipped: str = ""
    """Why no optimizer step was taken, with weights and optimizer unchanged; empty if one was."""


class WeightsSnapshot(Protocol):
    """A copy of one version's weights, unaffected by further training and readable from any thread."""

    @property
    def kind(self) -> WeightsKind:
        """The kind of the weights: `bytes` if `weights` returns them; a weight channel accepts its own kind only."""
        ...

    @property
    def exact(self) -> bool:
        """False if the weights were rounded to the explorers' dtype, so that their checksum differs from the
        engine's.
        """
        ...

    def weights(self) -> Weights:
        """Returns the tensors' bytes by name, for a weight channel. Raises ConfigError for weights of another kind."""
        ...


@runtime_checkable
class RestingEngine(Protocol):
    """A trainer engine able to free its device's memory between two steps, for rollouts.

    While at rest, weights and state stay readable (`checksum`, `snapshot`, `save`), and `train` is not called.
    """

    def rest(self) -> None:
        """Frees as much of the device's memory as possible."""
        ...

    def wake(self) -> None:
        """Occupies the memory again, with equal content. Raises DeviceMemoryError if there is no room."""
        ...


@runtime_checkable
class RemoteEngine(Protocol):
    """A trainer engine with weights and optimizer stored by a service; checkpoints contain a `ServiceState`."""

    @property
    def waits_for(self) -> str:
        """The service, in words, while a request to it is unanswered; else empty. Callable from any thread."""
        ...

    def forget(self, state: ServiceState) -> None:
        """Asks the service to delete the state of a discarded checkpoint.

        An unknown state is no error, nor is an unreachable service: the state then stays there.
        """
        ...


@runtime_checkable
class WatchedEngine(Protocol):
    """A trainer engine of several processes, watched for the end of a process between calls."""

    def watch(self) -> None:
        """Blocks until `close`; to be called on a separate thread. Raises RankError as soon as a process ends."""
        ...


@runtime_checkable
class DigestingEngine(Protocol):
    """A trainer engine able to compute digests in several forms, for comparison with trainers on other devices."""

    def digest_like(self, recorded: str) -> str:
        """Returns the digest of the current weights in the form of a digest in the log."""
        ...


@runtime_checkable
class ExplainingEngine(Protocol):
    """A trainer engine able to note the terms of the objective at each token, for replays."""

    def train_noting(self, batch: TrainBatch, notes: TermNotes) -> StepResult:
        """Trains a batch as `train` does, with equal weights afterwards, and fills the notes of the batch's samples."""
        ...


class TrainerEngine(Protocol):
    """Holds the weights and the optimizer. Every method blocks; the trainer calls all of them from one thread.

    `train` is a pure function of (weights, optimizer state, batch): the same plan gives the same weights, bit for bit
    if the engine is `deterministic`.
    """

    @property
    def deterministic(self) -> bool:
        """True if repeating a step gives weights with equal bytes."""
        ...

    def environment(self) -> dict[str, str]:
        """Returns the facts besides the log that influence the weights' bits: releases, threads, device. Only after
        `open`.
        """
        ...

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Loads the base model from the folder `model_path`. Raises DataError if the folder has no model."""
        ...

    def begin_stage(self, stage: StageSpec) -> None:
        """Begins a stage: its algorithm, a fresh optimizer and schedule; weights are unchanged."""
        ...

    def train(self, batch: TrainBatch) -> StepResult:
        """Takes a batch's optimizer steps; takes none, and sets `skipped`, if a reward, log-probability, loss or
        gradient is not finite.

        One step, unless `trainer.updates` has several mini-batches or epochs; among several, a step that is not finite
        is skipped alone, and `skipped` is set if none was taken. Raises NonFiniteLossError, weights unchanged, at the
        `trainer.max_nonfinite_steps`-th consecutive skipped batch; their number is part of a checkpoint.
        """
        ...

    def checksum(self) -> str:
        """Returns the checksum over name, dtype, shape and bits of every tensor, in a form of `weights.checksum`.

        It is computed at every step, therefore in the form `bits` for weights on a device; else it is the xxh3-128
        (hex) that a weight channel computes for the same weights.
        """
        ...

    def sha256(self) -> str:
        """Returns the sha256 digest of the same content, for checkpoints and deterministic experiments."""
        ...

    def snapshot(self) -> WeightsSnapshot:
        """Returns a copy of the current weights, to be published or saved during the next step."""
        ...

    def save(self, folder: Path, *, hf: bool) -> None:
        """Writes everything needed to resume into `folder` (a `global_step_N`), and with `hf` the folder
        `actor/huggingface`.
        """
        ...

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Restores the weights of a checkpoint, and the optimizer if `stage` is the stage of the checkpoint; None:
        weights only.
        """
        ...

    def close(self) -> None:
        """Frees memory and ends processes. Idempotent."""
        ...


def checksum_like(engine: TrainerEngine, recorded: str) -> str:
    """Returns the checksum of the engine's weights in the form of `recorded`, for comparison; in the engine's form if
    `recorded` is empty.
    """
    return engine.digest_like(recorded) if recorded and isinstance(engine, DigestingEngine) else engine.checksum()


def check_saved(engine: TrainerEngine, step: int, checksum: str) -> None:
    """Raises RankError if the weights in memory no longer have the step's checksum, after they were saved.

    Once committed, every later trainer would load the weights under the wrong checksum.
    """
    if form_of(checksum) == "name":  # of nothing that could be compared
        return
    present = checksum_like(engine, checksum)
    if present != checksum:
        raise RankError(
            f"the weights of step {step} changed in the trainer's memory before they were saved: their checksum was "
            f"{checksum}, it is {present}",
            fix="nothing: the trainer begins anew from the checkpoint before; if it comes again, test the memory",
        )


def sha256_like(engine: TrainerEngine, recorded: str) -> str:
    """Returns the sha256 digest of the engine's weights in the form of `recorded`, for comparison; in the engine's form
    if `recorded` is empty.
    """
    return engine.digest_like(recorded) if recorded and isinstance(engine, DigestingEngine) else engine.sha256()
