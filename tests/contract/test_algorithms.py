"""What every algorithm promises, through the torch trainer engine that executes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.algorithm_batches import make_algorithm, make_samples

from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.algorithms.registry import lookup, names
from rftd.workers.learning.engine import StepResult, TrainBatch, TrainSample
from rftd.workers.models.tiny_model import make_tiny_model

Gradient = dict[str, torch.Tensor]
WITH_ROLLOUTS = [name for name in names() if lookup(name).needs.rollouts]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that is trained; beside it lies its teacher."""
    folder = tmp_path_factory.mktemp("contract")
    make_tiny_model(folder / "teacher", seed=4, hidden_size=32, heads=2)
    return make_tiny_model(folder / "tiny", seed=3, hidden_size=32, heads=2)


def run(
    model: Path, name: str, samples: Sequence[TrainSample], *, budget_tokens: int = 8192
) -> tuple[Gradient, StepResult]:
    """The gradient of one step on fresh weights, and what it reported."""
    stage = StageSpec(
        name="stage",
        kind="both",
        total_steps=1,
        batch_size=4,
        train_batch_size=len(samples),
        algorithm=make_algorithm(name),
        model=ModelSpec(path=str(model), max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        trainer=TrainerSpec(max_tokens_per_micro_batch=budget_tokens, teacher_path=str(model.parent / "teacher")),
    )
    engine = TorchTrainerEngine()
    engine.open(ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={}), str(model))
    engine.begin_stage(stage)
    before = {name: value.clone() for name, value in engine.tensors().items()}
    result = engine.train(TrainBatch(step=1, stage_step=1, samples=samples))
    return {name: before[name] - value for name, value in engine.tensors().items()}, result


def assert_near(one: Gradient, two: Gradient) -> None:
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in WITH_ROLLOUTS if not lookup(name).needs.teacher])
def test_groups_without_advantages_have_no_gradient(model: Path, name: str) -> None:
    """Equal rewards teach nothing, except where the baseline is not that of the group."""
    samples = make_samples(name, rewards="equal")
    if any(sample.advantages is not None and sample.advantages.any() for sample in samples):
        assert name in {"asymre", "topr", "rae"}
        return
    gradient, _ = run(model, name, samples)
    assert not any(bool(value.any()) for value in gradient.values())


@pytest.mark.parametrize("name", names())
def test_what_masked_tokens_carry_changes_nothing(model: Path, name: str) -> None:
    samples = make_samples(name)
    changed = []
    for sample in samples:
        assert sample.logprobs is not None
        assert sample.advantages is not None
        masked = sample.loss_mask == 0
        changed.append(
            msgspec.structs.replace(
                sample,
                logprobs=np.where(masked, np.float32(-90), sample.logprobs),
                advantages=np.where(masked, np.float32(50), sample.advantages),
            )
        )
    one, _ = run(model, name, samples)
    two, _ = run(model, name, changed)
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_the_order_of_items_changes_only_rounding(model: Path, name: str) -> None:
    samples = make_samples(name)
    one, first = run(model, name, samples)
    two, second = run(model, name, [samples[i] for i in np.random.default_rng(1).permutation(len(samples))])
    assert_near(one, two)
    assert first.metrics["actor/final_loss"] == pytest.approx(second.metrics["actor/final_loss"], rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_micro_batches_change_only_rounding(model: Path, name: str) -> None:
    samples = make_samples(name)
    one, first = run(model, name, samples)
    two, second = run(model, name, samples, budget_tokens=16)
    assert second.metrics["actor/micro_batches"] > first.metrics["actor/micro_batches"]
    assert_near(one, two)
    for key, value in first.metrics.items():
        if key != "actor/micro_batches":
            assert second.metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("old_logprob", [-40.0, 0.0, 30.0])
def test_extreme_ratios_stay_finite(model: Path, name: str, old_logprob: float) -> None:
    samples = [
        msgspec.structs.replace(sample, logprobs=np.full(len(sample.loss_mask), old_logprob, np.float32))
        for sample in make_samples(name)
    ]
    gradient, result = run(model, name, samples)
    assert all(bool(value.isfinite().all()) for value in gradient.values())
    assert all(np.isfinite(value) for value in result.metrics.values())


@pytest.mark.parametrize("name", [name for name in names() if lookup(name).rows != "dpo"])
def test_a_group_of_one_is_finite(model: Path, name: str) -> None:
    gradient, _ = run(model, name, make_samples(name, members=1))
    assert all(bool(value.isfinite().all()) for value in gradient.values())


@pytest.mark.parametrize("name", [name for name in names() if lookup(name).needs.expert_data])
def test_an_experts_rows_are_learnt_beside_rollouts_whatever_the_micro_batches(model: Path, name: str) -> None:
    """The gradient of a mixed batch is that of its two losses, each over its own rows."""
    samples = make_samples(name)
    expert = [
        msgspec.structs.replace(
            sample,
            logprobs=np.zeros(len(sample.loss_mask), np.float32),
            advantages=np.zeros(len(sample.loss_mask), np.float32),
            expert=True,
        )
        for sample in samples[:4]
    ]
    mixed = [*samples[4:], *expert]
    whole, first = run(model, name, mixed)
    parts, second = run(model, name, mixed, budget_tokens=16)
    assert second.metrics["actor/micro_batches"] > first.metrics["actor/micro_batches"]
    assert_near(whole, parts)
    rollouts, _ = run(model, name, samples[4:])
    assert any(not torch.allclose(whole[key], rollouts[key]) for key in whole)
    assert {"actor/usual/ppo_kl"} <= first.metrics.keys()
    for key, value in first.metrics.items():
        if key.startswith(("actor/usual", "actor/expert")):
            assert second.metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
