"""What an engine lacks is refused with the argument that asks for it; without it everything else trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.algorithm_batches import make_algorithm, make_samples
from torch import Tensor

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec, ModelSpec, SamplingSpec, StageSpec, TasksetSpec, TrainerSpec
from rftd.workers.engines.fake.trainer import FakeTrainerArgs
from rftd.workers.learning import engine_registry as registry
from rftd.workers.learning.algorithms.registry import lookup, names
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.engine_definition import TrainerEngineDefinition
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.losses.demands import PARTS
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import PolicyLossOver, PolicyValues, TokenValues
from rftd.workers.learning.stage.micro_batch import MicroBatch, StepSums
from rftd.workers.learning.stage.stage_training import StageTraining
from rftd.workers.learning.stage.trainer_state import TrainerState
from rftd.workers.learning.token_advantages.token_advantage import PassField


class LogprobsAlone:
    """A `Learner` that gives log-probabilities of the policy and nothing else, as a service does."""

    critic = None
    device = torch.device("cpu")
    vocabulary_tokens = 128

    def __init__(self) -> None:
        self.steps = 0
        self.gradient: Tensor | None = None

    def pack(
        self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation
    ) -> list[MicroBatch]:
        chosen = [samples[number] for number in numbers]
        step = StepSums.of(chosen, numbers, aggregation)
        return [MicroBatch.of(chosen, np.array(numbers, np.int64), range(len(chosen)), step)]

    def values(self, micro_batches: Sequence[MicroBatch], fields: frozenset[PassField]) -> list[TokenValues]:
        assert fields <= {"logprobs"}
        return [TokenValues(logprobs=torch.full((len(micro.targets),), -4.8)) for micro in micro_batches]

    def accumulate(
        self, micro_batches: Sequence[MicroBatch], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        assert not reference
        found = []
        for number, micro in enumerate(micro_batches):
            logprobs = torch.full((len(micro.targets),), -4.8, requires_grad=True)
            value, terms = loss(number, PolicyValues(logprobs=logprobs, entropies=None, ref_logprobs=None))
            value.backward()  # type: ignore[no-untyped-call]
            self.gradient = logprobs.grad
            found.append(terms)
        return found

    def clip(self, limit: float) -> float | None:
        return None

    def step(self, rate: float) -> None:
        self.steps += 1

    def forget(self) -> None:
        return


def make_stage(algorithm: AlgorithmSpec, engine: str, temperature: float = 1.0) -> StageSpec:
    taskset = TasksetSpec(name="t", path="/t", sampling=SamplingSpec(temperature=temperature))
    return StageSpec(
        name="stage",
        kind="both",
        total_steps=1,
        batch_size=4,
        train_batch_size=12,
        algorithm=algorithm,
        model=ModelSpec(path="", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        taskset=taskset if lookup(algorithm.kind).needs.rollouts else None,
        trainer=TrainerSpec(engine=engine),
    )


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine that lacks all that one may lack."""

    def make(_opening: object) -> None:
        raise AssertionError("never made")

    definition = TrainerEngineDefinition(FakeTrainerArgs, make, lacks=dict.fromkeys(PARTS, "it is poor"))  # type: ignore[arg-type]
    found: Callable[[str], object] = registry.lookup
    monkeypatch.setattr(registry, "lookup", lambda name: definition if name == "poor" else found(name))
    return "poor"


def test_every_algorithm_on_every_engine(poor: str) -> None:
    """It is refused where its own definition says so, or trains on what the poorest engine gives."""
    refused: dict[str, set[str]] = {}
    for name in names():
        needs = lookup(name).needs
        for engine in (*registry.ENGINES.names(), poor):
            stage = make_stage(make_algorithm(name), engine)
            unmet = registry.unmet(stage)
            parts = {demand.part for demand, _ in unmet}
            assert parts <= registry.lookup(engine).lacks.keys()
            if unmet:
                with pytest.raises(ConfigError, match="has none") as error:
                    registry.check_objective(stage)
                assert error.value.field == ".".join(unmet[0][0].field)
                assert error.value.fix
            if engine == poor:
                refused[name] = {*parts}
                assert ("critic" in parts) == needs.critic
                assert ("teacher" in parts) == needs.teacher
            elif engine == "torch":
                assert not unmet
        if not refused[name]:
            learner = LogprobsAlone()
            state = TrainerState(stage="stage", step=0, stage_step=0, optimizer="adamw")
            stage = make_stage(make_algorithm(name), poor)
            training = StageTraining(stage, Objective.of(stage.algorithm), learner, state, seed=1)
            found = training.train(TrainBatch(step=1, stage_step=1, samples=make_samples(name)))
            assert learner.steps == 1, name
            assert "actor/entropy" not in found.metrics
            assert "actor/grad_norm" not in found.metrics
            assert np.isfinite(found.metrics["actor/final_loss"])
    assert not refused["sft"]
    assert refused["dpo"] == {"reference"}


def test_the_argument_that_asks_is_named(poor: str) -> None:
    grpo = make_algorithm("grpo")
    free = msgspec.structs.replace(grpo, kl_loss="none", entropy_loss="none")
    changes: tuple[tuple[dict[str, object], str], ...] = (
        ({"kl_loss": "k2", "kl_loss_args": {"kl_coef": 0.1}}, "algorithm.kl_loss_fn_args.kl_coef"),
        ({"kl_penalty": "k1", "kl_penalty_args": {"kl_coef": 0.1}}, "algorithm.kl_penalty_fn_args.kl_coef"),
        (
            {"entropy_loss": "default", "entropy_loss_args": {"entropy_coef": 0.1}},
            "algorithm.entropy_loss_fn_args.entropy_coef",
        ),
        ({"policy_loss": "dpo", "policy_loss_args": {}}, "algorithm.policy_loss_fn"),
    )
    assert registry.unmet(make_stage(free, poor)) == []
    for change, field in changes:
        with pytest.raises(ConfigError) as error:
            registry.check_objective(make_stage(msgspec.structs.replace(free, **change), poor))
        assert error.value.field == field
    with pytest.raises(ConfigError) as error:
        registry.check_objective(make_stage(free, poor, temperature=0.7))
    assert error.value.field == "model.temperature"
