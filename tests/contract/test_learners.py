"""A stage trains alike on every learner: torch's rows of token trees, and plain ranks that share a batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.algorithm_batches import make_algorithm, make_samples
from torch import Tensor
from transformers import AutoModelForCausalLM

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.streams.spec.stage_parts import CorrectionPart, CorrectionSpec, UpdatesSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.algorithms.registry import lookup, names
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import PolicyLossOver, PolicyValues, TokenValues
from rftd.workers.learning.stage.micro_batch import MicroBatch, StepSums
from rftd.workers.learning.stage.stage_training import StageTraining
from rftd.workers.learning.stage.trainer_state import TrainerState
from rftd.workers.learning.token_advantages.token_advantage import PassField
from rftd.workers.models.tiny_model import make_tiny_model

Group = list[tuple[Tensor, Tensor]]


class PlainRanks:
    """A `Learner` of as many ranks as it is told, each with its own copy of the model, in one process.

    A micro-batch is one response, or the two of a pair. Every rank computes every second one, as ranks of processes do.
    """

    critic = None
    device = torch.device("cpu")

    def __init__(self, folder: Path, ranks: int, samples: Sequence[TrainSample]) -> None:
        self.samples = samples
        self.reference = _model(folder)
        self.models = [copy.deepcopy(self.reference) for _ in range(ranks)]
        self.teacher = _model(folder.parent / "teacher")
        self.vocabulary_tokens: int = self.reference.config.vocab_size
        self.optimizers = [torch.optim.AdamW(each.parameters(), lr=0.0, weight_decay=0.0) for each in self.models]

    def pack(
        self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation
    ) -> list[MicroBatch]:
        chosen = [samples[number] for number in numbers]
        step = StepSums.of(chosen, numbers, aggregation)
        parts: dict[int, list[int]] = {}
        for place, sample in enumerate(chosen):
            parts.setdefault(sample.pair if sample.pair >= 0 else -1 - place, []).append(place)
        whole = np.array(numbers, np.int64)
        return [MicroBatch.of([chosen[n] for n in part], whole[part], part, step) for part in parts.values()]

    def values(self, micro_batches: Sequence[MicroBatch], fields: frozenset[PassField]) -> list[TokenValues]:
        found = []
        with torch.no_grad():
            for number, micro in enumerate(micro_batches):
                logprobs, entropies, signals, squares = self._forward(self.models[number % len(self.models)], micro)
                asked: dict[PassField, Tensor] = {"logprobs": logprobs, "entropies": entropies}
                asked["entropy_signals"] = signals
                asked["squares"] = squares
                asked["ref_logprobs"] = self._forward(self.reference, micro)[0]
                asked["teacher_logprobs"] = self._forward(self.teacher, micro)[0]
                found.append(TokenValues(**{name: value for name, value in asked.items() if name in fields}))
        return found

    def accumulate(
        self, micro_batches: Sequence[MicroBatch], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        figures = []
        for number, micro in enumerate(micro_batches):
            logprobs, entropies, *_ = self._forward(self.models[number % len(self.models)], micro)
            with torch.no_grad():
                ref_logprobs = self._forward(self.reference, micro)[0] if reference else None
            values = PolicyValues(logprobs=logprobs, entropies=entropies, ref_logprobs=ref_logprobs)
            value, terms = loss(number, values)
            value.backward()  # type: ignore[no-untyped-call]
            figures.append(terms)
        for same in zip(*(each.parameters() for each in self.models), strict=True):
            parts = [each.grad for each in same if each.grad is not None]
            for each in same:
                each.grad = torch.stack(parts).sum(0) if parts else None
        return figures

    def clip(self, limit: float) -> float:
        norms = [float(torch.nn.utils.clip_grad_norm_(each.parameters(), limit)) for each in self.models]
        return norms[0]

    def step(self, rate: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def forget(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _forward(self, model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The log-probability, entropy, entropy signal and sum of squares of each trained token  # [N] each"""
        found: list[Tensor] = []
        for number, member in enumerate(micro.members):
            sample = self.samples[member]
            places = micro.places[micro.sequence == number] + sample.prompt_tokens - 1
            logits = model(input_ids=torch.from_numpy(sample.tokens.astype(np.int64))[None]).logits[0, places]
            inverse = torch.from_numpy(micro.inverse_temperature[micro.sequence == number])
            found.append((logits * inverse[:, None]).log_softmax(-1))
        every = torch.cat(found)
        entropies = -(every.exp() * every).sum(-1)
        signals = (every.exp() * every.exp() * (entropies[:, None] + every)).sum(-1)
        squares = every.exp().square().sum(-1)
        return every.gather(1, torch.from_numpy(micro.targets)[:, None])[:, 0], entropies, signals, squares


@cache
def _model(folder: Path) -> Any:
    """A model that nobody changes."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that is trained; beside it lies its teacher."""
    folder = tmp_path_factory.mktemp("learners")
    make_tiny_model(folder / "teacher", seed=4, hidden_size=32, heads=2)
    return make_tiny_model(folder / "tiny", seed=3, hidden_size=32, heads=2)


def check(model: Path, name: str, algorithm: AlgorithmSpec, *, ranks: int, updates: UpdatesSpec | None = None) -> None:
    """Two batches leave the same weights and figures behind as on the torch engine, but for rounding."""
    samples = make_samples(name)
    algorithm = msgspec.structs.replace(algorithm, optimizer=Optimizer(lr=1e-3, weight_decay=0.0, clip_grad=1.0))
    stage = StageSpec(
        name="stage",
        kind="both",
        total_steps=5,
        batch_size=4,
        train_batch_size=len(samples),
        algorithm=algorithm,
        model=ModelSpec(path=str(model), max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        trainer=TrainerSpec(
            max_tokens_per_micro_batch=60,
            teacher_path=str(model.parent / "teacher"),
            updates=updates or UpdatesSpec(),
        ),
    )
    experiment = ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={})
    engine = TorchTrainerEngine()
    engine.open(experiment, str(model))
    engine.begin_stage(stage)
    learner = PlainRanks(model, ranks, samples)
    state = TrainerState(stage="stage", step=0, stage_step=0, optimizer="adamw")
    plain = StageTraining(stage, Objective.of(algorithm), learner, state, seed=experiment.seed)
    for step in (1, 2):
        batch = TrainBatch(step=step, stage_step=step, samples=samples)
        wanted = engine.train(batch)
        found = plain.train(batch)
        assert found.tokens == wanted.tokens
        assert found.metrics.keys() == wanted.metrics.keys()
        for figure, value in wanted.metrics.items():
            if figure != "actor/micro_batches":
                assert found.metrics[figure] == pytest.approx(value, rel=2e-3, abs=2e-4), figure
    for other in learner.models:
        own = dict(other.named_parameters())
        for tensor, value in engine.tensors().items():
            torch.testing.assert_close(own[tensor].detach(), value, rtol=0, atol=1e-4)
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if not lookup(name).needs.critic])
def test_every_algorithm(model: Path, name: str) -> None:
    check(model, name, make_algorithm(name), ranks=2)


@pytest.mark.parametrize(
    ("advantage", "arguments"), [("clipv", {"mu": 0.0, "max_frac": 0.5}), ("optimal_token_baseline", {})]
)
def test_figures_of_whole_distributions(model: Path, advantage: str, arguments: dict[str, Any]) -> None:
    algorithm = msgspec.structs.replace(make_algorithm("grpo"), advantage=advantage, advantage_args=arguments)
    check(model, "grpo", algorithm, ranks=2)


SEVERAL = UpdatesSpec(mini_batch_items=5, epochs=2, shuffle=True)


@pytest.mark.parametrize("ranks", [1, 3])
def test_passes_over_the_whole_batch_and_several_steps(model: Path, ranks: int) -> None:
    """Masks of all of a step, a penalty, adaptive KL, entropy: what no rank knows from its own micro-batches."""
    parts = (
        CorrectionPart(kind="decoupled", args={"cap": 1.2}),
        CorrectionPart(kind="m2po", args={"threshold": 0.02}),
    )
    algorithm = msgspec.structs.replace(
        make_algorithm("grpo"),
        correction=CorrectionSpec(old_logprobs="recomputed", parts=parts),
        kl_loss="k2",
        kl_loss_args={"kl_coef": 0.1, "adaptive": True, "target_kl": 0.01, "horizon": 10},
        kl_penalty="k1",
        kl_penalty_args={"kl_coef": 0.1},
        entropy_loss_args={"entropy_coef": 0.01},
    )
    check(model, "grpo", algorithm, ranks=ranks, updates=SEVERAL)
