"""A trainer engine stopped after every step and taken up by another number of ranks: how far is it from its own run?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from synthetic.models.algorithm_batches import make_algorithm, make_samples
from synthetic.models.engine_parity import MODEL_TOKENS

from rftd.storage.files.checkpoints import commit_folder, verify
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.learner.saving import has_tensors, read_tensors
from rftd.workers.learning.engine import TrainBatch, TrainerEngine
from rftd.workers.learning.engine_registry import make_engine

KINDS = ("actor/model", "actor/optimizer", "actor/reference", "critic/model", "critic/optimizer")


@dataclass(frozen=True)
class Apart:
    """The farthest that a single number is from that of the uninterrupted run, absolute, after one more step."""

    step: int
    """The step after which the run was stopped."""
    before: int
    """The ranks that had trained until then."""
    after: int
    """The ranks that went on."""
    weights: float
    moments: float


class ResumeBench:
    """Engines of one name with 1 and 2 ranks, each opened once, that train PPO with a critic and a reference."""

    def __init__(
        self, engine: str, model: Path, folder: Path, of_two: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """`folder` is this bench's own. `of_two`: further arguments of the engine with two ranks."""
        self._folder = folder
        self._saved = 0
        self._stages = {ranks: _stage(engine, model, ranks, of_two if ranks > 1 else {}) for ranks in (1, 2)}
        self.engines: dict[int, TrainerEngine] = {}
        for ranks, stage in self._stages.items():
            made = make_engine(stage.trainer)
            self.engines[ranks] = made
            spec = ExperimentSpec(project="p", name="n", job_dir=str(folder), stages=(stage,), config={})
            made.open(spec, str(model))

    def apart(self, steps: int) -> Iterator[Apart]:
        """Both numbers of ranks after both: what goes on from each of the steps, held against the run itself."""
        for before, engine in self.engines.items():
            engine.begin_stage(self._stages[before])
            folders = [self._save(before)]
            for step in range(1, steps + 1):
                engine.train(_batch(step))
                folders.append(self._save(before))
            for step in range(steps):
                for after, other in self.engines.items():
                    other.load(folders[step], self._stages[after])
                    other.train(_batch(step + 1))
                    found = _farthest(self._save(after), folders[step + 1])
                    yield Apart(step, before, after, found["model"], found["optimizer"])

    def stage(self, ranks: int) -> StageSpec:
        """The stage as that number of ranks trains it."""
        return self._stages[ranks]

    def saved_after_a_step(self, ranks: int) -> Path:
        """A checkpoint of these ranks in the middle of their stage."""
        engine = self.engines[ranks]
        engine.begin_stage(self._stages[ranks])
        engine.train(_batch(1))
        return self._save(ranks)

    def close(self) -> None:
        """Ends the ranks."""
        for each in self.engines.values():
            each.close()

    def _save(self, ranks: int) -> Path:
        self._saved += 1
        folder = self._folder / f"{self._saved}"
        files = commit_folder(folder, lambda beside: self.engines[ranks].save(beside, hf=False))
        verify(folder, files)
        return folder


def _stage(engine: str, model: Path, ranks: int, further: Mapping[str, Any]) -> StageSpec:
    optimizer = Optimizer(lr=1e-3, lr_warmup_steps=2, clip_grad=1.0, lr_scheduler_type="cosine", decay_all=True)
    algorithm = msgspec.structs.replace(
        make_algorithm("ppo"), kl_loss="k2", kl_loss_args={"kl_coef": 0.01}, optimizer=optimizer
    )
    return StageSpec(
        name="resumed",
        kind="both",
        total_steps=10,
        batch_size=4,
        train_batch_size=12,
        algorithm=algorithm,
        model=ModelSpec(path=str(model), max_model_len=MODEL_TOKENS, max_prompt_tokens=32, max_response_tokens=32),
        # So small that every rank has several micro-batches.
        trainer=TrainerSpec(
            engine=engine,
            max_tokens_per_micro_batch=24,
            engine_args={"device": "cpu", "ranks": ranks, **further},
        ),
    )


def _batch(step: int) -> TrainBatch:
    return TrainBatch(step=step, stage_step=step, samples=make_samples("ppo", drift=0.05 * step))


def _farthest(one: Path, other: Path) -> Mapping[str, float]:
    """The farthest that two checkpoints are apart, by what their tensors are."""
    found = {"model": 0.0, "optimizer": 0.0, "reference": 0.0}
    for kind in KINDS:
        assert has_tensors(other / f"{kind}.safetensors"), f"{other} has no {kind}"
        mine = read_tensors(one / f"{kind}.safetensors")
        wanted = read_tensors(other / f"{kind}.safetensors")
        assert mine.keys() == wanted.keys()
        name = kind.split("/")[1]
        for key, value in wanted.items():
            found[name] = max(found[name], float((mine[key].double() - value.double()).abs().max()))
    assert found["reference"] == 0.0, "a reference does not learn"
    assert torch.isfinite(torch.tensor(list(found.values()))).all()
    return found
