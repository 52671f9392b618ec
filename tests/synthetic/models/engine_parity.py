"""A trainer engine held against the torch engine: the same batches of every algorithm, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from synthetic.models.algorithm_batches import make_algorithm, make_samples

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.streams.spec.stage_parts import UpdatesSpec
from rftd.workers.learning.algorithms.registry import lookup, names
from rftd.workers.learning.engine import TrainBatch, TrainerEngine
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights.torch_bytes import tensors_of

STEPS = 5
MODEL_TOKENS = 64
_OF_CRITIC = {
    **{"critic_lr": 1e-3, "critic_weight_decay": 0.1, "critic_lr_scheduler_type": "cosine"},
    **{"critic_lr_warmup_steps_ratio": 0.4, "critic_min_lr_ratio": 0.1},
}
"""A critic's own schedule: two steps of warm-up, and three of a cosine."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An algorithm, and how its batches are cut."""

    algorithm: str
    advantage: str = ""
    """An advantage function in place of the algorithm's own, with `advantage_args`."""
    advantage_args: dict[str, Any] = field(default_factory=dict)
    budget_tokens: int = 8192
    updates: UpdatesSpec = field(default_factory=UpdatesSpec)
    dtype: str = "float32"

    def stage(self, model: Path, engine: str, arguments: Mapping[str, Any], lora: LoraSpec | None = None) -> StageSpec:
        """The stage of this case; the teacher lies beside the model."""
        algorithm = msgspec.structs.replace(
            make_algorithm(self.algorithm),
            optimizer=Optimizer(lr=1e-3, lr_warmup_steps=2, clip_grad=1.0, decay_all=True),
        )
        if self.advantage:
            algorithm = msgspec.structs.replace(algorithm, advantage=self.advantage, advantage_args=self.advantage_args)
        return StageSpec(
            name=f"{self.algorithm}{self.advantage}-{self.budget_tokens}-{self.updates.epochs}",
            kind="both" if lookup(self.algorithm).needs.rollouts else "train",
            total_steps=STEPS,
            batch_size=4,
            train_batch_size=12,
            algorithm=algorithm,
            model=ModelSpec(
                path=str(model),
                max_model_len=MODEL_TOKENS,
                max_prompt_tokens=32,
                max_response_tokens=32,
                lora=lora,
            ),
            trainer=TrainerSpec(
                engine=engine,
                dtype=self.dtype,
                max_tokens_per_micro_batch=self.budget_tokens,
                teacher_path=str(model.parent / "teacher"),
                engine_args={**arguments, **(_OF_CRITIC if self.algorithm == "ppo" else {})},
                updates=self.updates,
            ),
        )

    def batches(self) -> Iterator[TrainBatch]:
        """The batches of all steps, whose responses were drawn ever farther from the policy."""
        for step in range(1, STEPS + 1):
            samples = make_samples(self.algorithm, drift=0.1 * step)
            yield TrainBatch(step=step, stage_step=step, samples=samples)


@dataclass(frozen=True)
class Trained:
    """What came of a case."""

    losses: list[float]
    norms: list[float]
    critic_rates: list[float | None]
    weights: Mapping[str, torch.Tensor] = field(repr=False)


@dataclass(frozen=True)
class Distance:
    """How far two engines are apart at the farthest."""

    loss: float
    """Absolute, in the loss's own unit."""
    norm: float
    """Of the gradient, relative."""
    weights: float
    """Absolute, of a single weight."""


def make_models(folder: Path) -> Path:
    """The folder of the model that is trained; beside it lies its teacher."""
    make_tiny_model(folder / "teacher", seed=4, hidden_size=32, heads=2)
    return make_tiny_model(folder / "tiny", seed=3, hidden_size=32, heads=2)


def all_cases(budgets: Sequence[int]) -> list[Case]:
    """Every algorithm with every budget, figures of whole distributions, two epochs of shuffled mini-batches."""
    cases = [Case(algorithm=name, budget_tokens=budget) for name in names() for budget in budgets]
    clip = {"mu": 0.0, "max_frac": 0.5}
    cases += [
        Case(algorithm="grpo", advantage="clipv", advantage_args=clip, budget_tokens=32),
        Case(algorithm="grpo", advantage="optimal_token_baseline", budget_tokens=32),
    ]
    several = UpdatesSpec(epochs=2, mini_batch_items=4, shuffle=True)
    return [*cases, *(Case(algorithm=name, budget_tokens=64, updates=several) for name in ("grpo", "ppo"))]


class ParityBench:
    """One engine, opened once, that runs case after case from the same weights."""

    def __init__(
        self,
        engine: str,
        model: Path,
        folder: Path,
        arguments: Mapping[str, Any] | None = None,
        lora: LoraSpec | None = None,
    ) -> None:
        """`folder` is this bench's own. `lora`: an adapter is trained."""
        self._name = engine
        self._lora = lora
        self._arguments = dict(arguments or {})
        self.model = model
        first = Case(algorithm="grpo").stage(model, engine, self._arguments, lora)
        self.engine: TrainerEngine = make_engine(first.trainer)
        experiment = ExperimentSpec(project="p", name="n", job_dir=str(folder), stages=(first,), config={})
        self.engine.open(experiment, str(model))
        self.start = folder / "global_step_0"
        self.engine.save(self.start, hf=False)

    def stage(self, case: Case) -> StageSpec:
        """The case's stage with this engine."""
        return case.stage(self.model, self._name, self._arguments, self._lora)

    def run(self, case: Case) -> Trained:
        """Trains the case's steps on the model's own weights."""
        self.engine.load(self.start, None)
        self.engine.begin_stage(self.stage(case))
        losses = []
        norms = []
        rates = []
        for batch in case.batches():
            result = self.engine.train(batch)
            assert not result.skipped
            losses.append(result.metrics["actor/final_loss"])
            norms.append(result.metrics["actor/grad_norm"])
            rates.append(result.metrics.get("critic/lr"))
        weights = {name: value.clone() for name, value in tensors_of(self.engine.snapshot().weights()).items()}
        return Trained(losses, norms, rates, weights)


def distance(one: Trained, other: Trained) -> Distance:
    """How far two runs of one case are apart."""
    assert one.weights.keys() == other.weights.keys()
    norms = np.array(one.norms)
    return Distance(
        loss=float(np.abs(np.array(one.losses) - np.array(other.losses)).max()),
        norm=float((np.abs(norms - np.array(other.norms)) / np.maximum(norms, 1e-6)).max()),
        weights=max(float((value - other.weights[name]).abs().max()) for name, value in one.weights.items()),
    )
