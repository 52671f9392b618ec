"""`TrainerEngine`: the seam between the trainer and an engine of gradients."""

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


class TrainSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence of a batch as arrays: T tokens, the first P the prompt's, R = T - P the response's."""

    tokens: NDArray[np.uint32]  # [T]
    prompt_tokens: int
    loss_mask: NDArray[np.uint8]  # [R]
    logprobs: NDArray[np.float32] | None = None  # [R], under the weights that drew it; None for dataset rows
    advantages: NDArray[np.float32] | None = None  # [R]
    versions: NDArray[np.int64] | None = None  # [R], of the weights that drew each token; None: not known
    reward: float = 0.0
    group: int = -1
    """The index of its group within the batch; -1 without one."""
    temperatures: NDArray[np.float64] | None = None  # [R], at which each token was drawn; 0: greedily; None: 1
    staleness_versions: int = 0
    expert: bool = False
    """True for rows of a dataset in a mixed batch."""
    pair: int = -1
    """The index of its preference within the batch, of two responses; -1 without one."""
    chosen: bool | None = None
    """True for the preferred one of a pair, or a desirable response; False for others; None: there is no such label."""


class TrainBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one training step, in the order of the plan."""

    step: int
    """The weight version that this step makes."""
    stage_step: int
    """The number of the step within its stage, from 1."""
    samples: Sequence[TrainSample]
    items: Sequence[int] = ()
    """The number of samples of each item of the plan, in its order; empty: one each, or the two of a pair."""
    metrics: dict[str, float] = {}
    """The figures that are known before it is trained; they are reported with the step."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a training step."""

    tokens: int
    """The number of tokens with a gradient."""
    metrics: dict[str, float]
    """The figures of the step under Trinity-RFT's names: actor/pg_loss, actor/grad_norm, actor/lr, ..."""
    skipped: str = ""
    """The reason why weights and optimizer were not touched; empty if they were."""


class WeightsSnapshot(Protocol):
    """Weights of one version, apart from the weights under training, readable by any thread."""

    @property
    def kind(self) -> WeightsKind:
        """The kind of the weights, `bytes` for kinds with `weights`; channels refuse other kinds than their own."""
        ...

    @property
    def exact(self) -> bool:
        """False for weights rounded to the dtype of explorers, unlike the weights of `checksum`."""
        ...

    def weights(self) -> Weights:
        """The tensors' bytes by name, for a weight channel. Raises ConfigError for weights of another kind."""
        ...


@runtime_checkable
class RestingEngine(Protocol):
    """A trainer engine with a rest between two steps, its device's memory free for rollouts.

    At rest, weights and state stay readable (`checksum`, `snapshot`, `save`), and `train` is not called.
    """

    def rest(self) -> None:
        """Gives up the device's memory, as far as possible."""
        ...

    def wake(self) -> None:
        """Takes the memory back, with equal content. Raises DeviceMemoryError without room."""
        ...


@runtime_checkable
class RemoteEngine(Protocol):
    """A trainer engine with weights and optimizer at a service, and a `ServiceState` in checkpoints."""

    @property
    def waits_for(self) -> str:
        """The service in words while without an answer, else empty; callable from any thread."""
        ...

    def forget(self, state: ServiceState) -> None:
        """Has the service delete the state of a discarded checkpoint.

        An unknown state is no error, nor is a silent service: the state stays at the service.
        """
        ...


@runtime_checkable
class WatchedEngine(Protocol):
    """A trainer engine of several processes, watched for a process's end between calls."""

    def watch(self) -> None:
        """Blocks until `close`, on a separate thread. Raises RankError on the loss of a process."""
        ...


@runtime_checkable
class DigestingEngine(Protocol):
    """A trainer engine with digests in several forms, for comparison with trainers on other devices."""

    def digest_like(self, recorded: str) -> str:
        """The digest of the weights in the form of a recorded digest."""
        ...


class TrainerEngine(Protocol):
    """Owns the weights and the optimizer. Every method blocks; the trainer calls it from one thread of its own.

    `train` is a pure function of (weights, optimizer state, batch): the same plan gives the same weights, bit for
    bit on an engine that says so (`deterministic`).
    """

    @property
    def deterministic(self) -> bool:
        """True if re-executing a plan gives equal bytes."""
        ...

    def environment(self) -> dict[str, str]:
        """The releases, threads and device with an influence on the weights' bits beside the log; only after `open`."""
        ...

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Loads the base model. Raises DataError if the folder holds none."""
        ...

    def begin_stage(self, stage: StageSpec) -> None:
        """Takes the stage's algorithm, a fresh optimizer and schedule; the weights go on."""
        ...

    def train(self, batch: TrainBatch) -> StepResult:
        """A batch's optimizer steps, or none (`skipped`) if a reward, log-probability, loss or gradient is not finite.

        One, unless `trainer.updates` asks for several mini-batches or epochs. Of several, one that is not finite is
        left out alone, and `skipped` says that none was made.

        Raises NonFiniteLossError, weights untouched, at the `trainer.max_nonfinite_steps`-th such batch in a row; how
        many there were is part of what `save` writes.
        """
        ...

    def checksum(self) -> str:
        """The checksum over name, dtype, shape and bits of every tensor, in a form of `weights.checksum`.

        It is made of every step, so by `bits` where the weights lie on a device; else it is the xxh3-128 (hex) that a
        weight channel gives the same weights.
        """
        ...

    def sha256(self) -> str:
        """A digest over the same by sha256, for checkpoints and deterministic experiments."""
        ...

    def snapshot(self) -> WeightsSnapshot:
        """The present weights, for writing during the next step."""
        ...

    def save(self, folder: Path, *, hf: bool) -> None:
        """Writes everything that resuming needs into `folder` (a `global_step_N`), with `actor/huggingface` if `hf`."""
        ...

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Restores weights, and the optimizer if `stage` is the one that it was saved in (None: weights only)."""
        ...

    def close(self) -> None:
        """Releases memory and processes. Idempotent."""
        ...


def checksum_like(engine: TrainerEngine, recorded: str) -> str:
    """The checksum of the engine's weights in the form of a recorded checksum; empty: in the engine's form."""
    return engine.digest_like(recorded) if recorded and isinstance(engine, DigestingEngine) else engine.checksum()


def check_saved(engine: TrainerEngine, step: int, checksum: str) -> None:
    """Raises RankError for saved weights unlike the step's checksum.

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
    """The digest by sha256 in the form of a recorded digest; empty: in the engine's form."""
    return engine.digest_like(recorded) if recorded and isinstance(engine, DigestingEngine) else engine.sha256()
