"""The fake trainer engine: its weights are a digest of all its training data, in order.

Equal checksums therefore mean equal training histories, for tests of recovery.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np

from rftd.ops import limits
from rftd.ops.decoding import converted, json_decoder
from rftd.ops.errors import DataError
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.engines.ranks.controller import RankedEngine, RankPlan
from rftd.workers.engines.ranks.messages import RankPlace
from rftd.workers.learning import nonfinite
from rftd.workers.learning.engine import StepResult, TrainBatch, TrainerEngine
from rftd.workers.learning.engine_definition import TrainerEngineDefinition, TrainerOpening
from rftd.workers.weights.channel import BYTES
from rftd.workers.weights.checksum import checksum
from rftd.workers.weights.tensor_bytes import TensorBytes, Weights


class FakeTrainerArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_args` of the fake engine."""

    step_s: float = 0.0
    """Seconds per step."""
    nan_at_step: int = 0
    """Stage step with a NaN loss; 0: none."""
    nan_steps: int = 1
    """Number of consecutive steps with a NaN loss."""
    ranks: Annotated[int, msgspec.Meta(ge=0, le=limits.RANKS)] = 0
    """Number of identical processes; 0: the engine runs in the trainer process."""
    nodes: Annotated[int, msgspec.Meta(ge=1, le=limits.RANKS)] = 1
    """Number of nodes of a Ray cluster for the processes."""
    rank_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=limits.CALL_TIMEOUT_S)] = limits.RANK_CALL_TIMEOUT_S
    """Maximum seconds of one call of the ranks."""


class FakeState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a checkpoint of the fake engine."""

    weights: str
    """Digest of the experiment's seed and of all training data, in hex: the engine's weights."""
    optimizer: str
    """Digest of the data since the optimizer began; `fresh` before the first step, empty before a stage."""
    stage: str
    """Name of the stage under training; empty between stages."""
    nonfinite_in_a_row: int = 0
    """Number of consecutive steps skipped for a loss that is not finite."""


class FakeSnapshot:
    """Implements `WeightsSnapshot`: the digest at one step, as a single tensor of bytes."""

    kind = BYTES
    """Kind of the snapshot: bytes of tensors."""
    exact = True
    """True: nothing is rounded."""

    def __init__(self, weights: str) -> None:
        self._weights = weights

    def weights(self) -> Weights:
        """Returns the digest as a single tensor of bytes."""
        return _weights(self._weights)


class FakeTrainerEngine:
    """Implements `TrainerEngine` without a model: deterministic, and fast enough for tests of recovery."""

    def __init__(self, arguments: FakeTrainerArgs | None = None, *, rank: int = 0) -> None:
        """Makes an engine without weights; among several identical ranks, only `rank` 0 writes checkpoints."""
        self._args = arguments or FakeTrainerArgs()
        self._rank = rank
        self._state = FakeState(weights="", optimizer="", stage="")
        self._limit = 1
        self._rate = 0.0

    @property
    def deterministic(self) -> bool:
        """True: equal training data give equal weights."""
        return True

    def environment(self) -> dict[str, str]:
        """Returns the engine's name, the only fact that its weights depend on."""
        return {"engine": "fake"}

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Begins with a digest of the experiment's seed; the model's folder is not read."""
        self._state = FakeState(weights=_digest(b"base", str(experiment.seed).encode()), optimizer="", stage="")

    def begin_stage(self, stage: StageSpec) -> None:
        """Begins a stage with a fresh optimizer and the current weights."""
        self._args = converted(dict(stage.trainer.engine_args), FakeTrainerArgs)
        self._limit = stage.trainer.max_nonfinite_steps
        self._rate = stage.algorithm.optimizer.lr
        self._state = FakeState(weights=self._state.weights, optimizer="fresh", stage=stage.name)

    def train(self, batch: TrainBatch) -> StepResult:
        """Adds the batch to the digest, after `step_s` seconds; a step with a NaN loss is skipped."""
        if self._args.step_s:
            time.sleep(self._args.step_s)
        bad = range(self._args.nan_at_step, self._args.nan_at_step + self._args.nan_steps)
        if self._args.nan_at_step and batch.stage_step in bad:
            in_a_row = self._state.nonfinite_in_a_row + 1
            reason = nonfinite.skipped(in_a_row, self._limit, batch.step, "the loss is nan")
            self._state = msgspec.structs.replace(self._state, nonfinite_in_a_row=in_a_row)
            return StepResult(tokens=0, metrics={"actor/nonfinite_in_a_row": float(in_a_row)}, skipped=reason)
        parts = [self._state.weights.encode(), self._state.optimizer.encode()]
        tokens = 0
        for sample in batch.samples:
            parts.append(sample.tokens.tobytes())
            if sample.advantages is not None:
                # Little-endian whatever the machine, so that checksums agree across machines.
                parts.append(np.asarray(sample.advantages, dtype="<f4").tobytes())
            tokens += int((sample.loss_mask != 0).sum())
        self._state = FakeState(
            weights=_digest(*parts), optimizer=_digest(b"optimizer", *parts), stage=self._state.stage
        )
        rewards = [sample.reward for sample in batch.samples if sample.advantages is not None]
        figures = (
            {"critic/rewards/mean": float(np.mean(rewards)), "critic/rewards/max": max(rewards)} if rewards else {}
        )
        advantages = [
            sample.advantages for sample in batch.samples if sample.advantages is not None and sample.advantages.size
        ]
        if advantages:
            figures["critic/advantages/max"] = float(max(sample_advantages.max() for sample_advantages in advantages))
            figures["critic/advantages/min"] = float(min(sample_advantages.min() for sample_advantages in advantages))
        return StepResult(tokens=tokens, metrics=figures | {"actor/lr": self._rate})

    def checksum(self) -> str:
        """Returns the checksum of the weights, as compared by explorers."""
        return checksum(_weights(self._state.weights))

    def sha256(self) -> str:
        """Returns the digest that is the engine's weights."""
        return self._state.weights

    def snapshot(self) -> FakeSnapshot:
        """Returns a copy of the current weights."""
        return FakeSnapshot(self._state.weights)

    def save(self, folder: Path, *, hf: bool) -> None:
        """Writes the state into `actor/state.json`, from rank 0 alone; with `hf`, a config for transformers as well."""
        if self._rank:
            return
        actor = folder / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        _write(actor / "state.json", msgspec.json.encode(self._state))
        if hf:
            (actor / "huggingface").mkdir(exist_ok=True)
            _write(actor / "huggingface" / "config.json", b'{"model_type": "fake"}')

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Loads the state of a checkpoint; only its weights if `stage` is None. Raises DataError for a missing or
        damaged file.
        """
        path = folder / "actor" / "state.json"
        try:
            state = json_decoder(FakeState).decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(f"no checkpoint of the fake engine: {error}", where=str(path)) from error
        self._state = state if stage is not None else FakeState(weights=state.weights, optimizer="", stage="")
        if stage is not None:
            self._args = converted(dict(stage.trainer.engine_args), FakeTrainerArgs)
            self._limit = stage.trainer.max_nonfinite_steps
            self._rate = stage.algorithm.optimizer.lr

    def close(self) -> None:
        """Does nothing: the engine has no resources."""
        return


def _weights(digest: str) -> Weights:
    """Returns a digest as a single tensor of bytes."""
    digest_bytes = bytes.fromhex(digest)
    return {"digest": TensorBytes("uint8", (len(digest_bytes),), memoryview(digest_bytes))}


def _digest(*parts: bytes) -> str:
    """Returns the sha256, in hex, over the parts with their lengths."""
    digest = hashlib.sha256()
    for piece in parts:
        # Lengths first: without them two histories could have the same bytes, split differently.
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Writes a file and syncs it to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_rank(rank: RankPlace) -> TrainerEngine:
    """Makes the engine of one rank, in the rank's process."""
    return FakeTrainerEngine(converted(dict(rank.trainer.engine_args), FakeTrainerArgs), rank=rank.rank)


def _make(opening: TrainerOpening[FakeTrainerArgs]) -> TrainerEngine:
    """Makes the engine in the trainer process, or an engine of several ranks if `ranks` is set."""
    arguments = opening.arguments
    if not arguments.ranks:
        return FakeTrainerEngine(arguments)
    return RankedEngine(
        RankPlan(
            maker=f"{__name__}:{make_rank.__name__}",
            ranks=arguments.ranks,
            trainer=opening.trainer,
            threads=opening.threads,
            backend="",
            timeout_s=arguments.rank_timeout_s,
        )
    )


ENGINE: Final = TrainerEngineDefinition(
    arguments=FakeTrainerArgs, make=_make, opened_with=("ranks", "nodes", "rank_timeout_s")
)
"""Definition of the engine for the registry."""
