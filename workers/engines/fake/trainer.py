"""The fake trainer engine: its weights are a digest of everything it was trained on, in order.

So equal checksums mean equal training histories, which is what tests of recovery want to know.
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
    """The time that a step takes."""
    nan_at_step: int = 0
    """The stage step whose loss is NaN; 0: none."""
    nan_steps: int = 1
    """The number of steps with a NaN loss, from that one on."""
    ranks: Annotated[int, msgspec.Meta(ge=0, le=limits.RANKS)] = 0
    """The number of processes that all do the same; 0: it runs in the trainer process."""
    nodes: Annotated[int, msgspec.Meta(ge=1, le=limits.RANKS)] = 1
    """The nodes of a Ray cluster over which they are spread."""
    rank_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=limits.CALL_TIMEOUT_S)] = limits.RANK_CALL_TIMEOUT_S
    """The longest that one call of the ranks may take."""


class FakeState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a checkpoint of the fake engine."""

    weights: str
    optimizer: str
    stage: str
    nonfinite_in_a_row: int = 0


class FakeSnapshot:
    """Implements `WeightsSnapshot`."""

    kind = BYTES
    exact = True

    def __init__(self, weights: str) -> None:
        self._weights = weights

    def weights(self) -> Weights:
        return _weights(self._weights)


class FakeTrainerEngine:
    """Implements `TrainerEngine` without a model; deterministic."""

    def __init__(self, arguments: FakeTrainerArgs | None = None, *, rank: int = 0) -> None:
        """`rank`: of several that do the same, the first alone writes checkpoints."""
        self._args = arguments or FakeTrainerArgs()
        self._rank = rank
        self._state = FakeState(weights="", optimizer="", stage="")
        self._limit = 1
        self._rate = 0.0

    @property
    def deterministic(self) -> bool:
        return True

    def environment(self) -> dict[str, str]:
        return {"engine": "fake"}

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        self._state = FakeState(weights=_digest(b"base", str(experiment.seed).encode()), optimizer="", stage="")

    def begin_stage(self, stage: StageSpec) -> None:
        self._args = converted(dict(stage.trainer.engine_args), FakeTrainerArgs)
        self._limit = stage.trainer.max_nonfinite_steps
        self._rate = stage.algorithm.optimizer.lr
        self._state = FakeState(weights=self._state.weights, optimizer="fresh", stage=stage.name)

    def train(self, batch: TrainBatch) -> StepResult:
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
            tokens += int(sample.loss_mask.sum())
        self._state = FakeState(
            weights=_digest(*parts), optimizer=_digest(b"optimizer", *parts), stage=self._state.stage
        )
        rewards = [sample.reward for sample in batch.samples if sample.advantages is not None]
        figures = (
            {"critic/rewards/mean": float(np.mean(rewards)), "critic/rewards/max": max(rewards)} if rewards else {}
        )
        advantages = [each.advantages for each in batch.samples if each.advantages is not None and each.advantages.size]
        if advantages:
            figures["critic/advantages/max"] = float(max(each.max() for each in advantages))
            figures["critic/advantages/min"] = float(min(each.min() for each in advantages))
        return StepResult(tokens=tokens, metrics=figures | {"actor/lr": self._rate})

    def checksum(self) -> str:
        return checksum(_weights(self._state.weights))

    def sha256(self) -> str:
        return self._state.weights

    def snapshot(self) -> FakeSnapshot:
        return FakeSnapshot(self._state.weights)

    def save(self, folder: Path, *, hf: bool) -> None:
        if self._rank:
            return
        actor = folder / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        _write(actor / "state.json", msgspec.json.encode(self._state))
        if hf:
            (actor / "huggingface").mkdir(exist_ok=True)
            _write(actor / "huggingface" / "config.json", b'{"model_type": "fake"}')

    def load(self, folder: Path, stage: StageSpec | None) -> None:
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
        return


def _weights(digest: str) -> Weights:
    data = bytes.fromhex(digest)
    return {"digest": TensorBytes("uint8", (len(data),), memoryview(data))}


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        # Lengths first: without them two histories could have the same bytes, cut at other places.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_rank(place: RankPlace) -> TrainerEngine:
    """The engine of one rank."""
    return FakeTrainerEngine(converted(dict(place.trainer.engine_args), FakeTrainerArgs), rank=place.rank)


def _make(opening: TrainerOpening[FakeTrainerArgs]) -> TrainerEngine:
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
