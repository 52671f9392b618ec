"""Tokens of the environment that `echo` trains: which they are, and what they weigh."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.algorithm_batches import make_algorithm, make_samples
from transformers import AutoModelForCausalLM

from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, StageSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import StepResult, TrainBatch, TrainSample
from rftd.workers.learning.losses.aggregation import OBSERVED
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.training.group_samples import observed

Gradient = dict[str, torch.Tensor]


def test_masked_tokens_that_nobody_drew_are_observed_at_temperature_1() -> None:
    mask = np.array([1, 0, 0, 1], np.uint8)
    logprobs = np.array([-0.5, 0.0, -0.25, 0.0], np.float32)
    marked, temperatures = observed(mask, logprobs, np.full(4, 0.6))
    assert marked.tolist() == [1, OBSERVED, 0, 1], "a masked token of the model is no observation"
    assert temperatures.tolist() == [0.6, 1.0, 0.6, 0.6]
    assert mask.tolist() == [1, 0, 0, 1]


def step_of(model: Path, kind: str, samples: list[TrainSample]) -> tuple[Gradient, StepResult]:
    """The gradient of one step on fresh weights, and what it reported."""
    stage = StageSpec(
        name="stage",
        kind="both",
        total_steps=1,
        batch_size=4,
        train_batch_size=len(samples),
        algorithm=make_algorithm(kind),
        model=ModelSpec(path=str(model), max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
    )
    stage = msgspec.structs.replace(
        stage, algorithm=msgspec.structs.replace(stage.algorithm, kl_loss="none", entropy_loss="none")
    )
    engine = TorchTrainerEngine()
    engine.open(ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={}), str(model))
    engine.begin_stage(stage)
    before = {name: tensor.clone() for name, tensor in engine.tensors().items()}
    result = engine.train(TrainBatch(step=1, stage_step=1, samples=samples))
    return {name: before[name] - tensor for name, tensor in engine.tensors().items()}, result


def surprise(model: Path, samples: list[TrainSample]) -> tuple[Gradient, float]:
    """The mean negative log-likelihood of all observed tokens, and its gradient, by a plain loop."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    losses = []
    for sample in samples:
        tokens = torch.from_numpy(sample.tokens.astype(np.int64))
        logprobs = policy(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        losses.append(-logprobs[sample.prompt_tokens - 1 :][torch.from_numpy(sample.loss_mask == OBSERVED)])
    loss = torch.cat(losses).mean()
    loss.backward()
    return {name: weight.grad for name, weight in policy.named_parameters() if weight.grad is not None}, float(loss)


def test_echo_adds_the_likelihood_of_observations_to_grpo(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", seed=3, hidden_size=32, heads=2)
    plain = make_samples("grpo")
    marked = [
        msgspec.structs.replace(sample, loss_mask=np.where(sample.loss_mask == 0, OBSERVED, 1).astype(np.uint8))
        for sample in plain
    ]
    of_grpo, _ = step_of(model, "grpo", plain)
    of_echo, result = step_of(model, "echo", marked)
    of_likelihood, loss = surprise(model, marked)
    assert result.metrics["actor/observation_loss"] == pytest.approx(loss, rel=1e-4)
    for name, gradient in of_echo.items():
        torch.testing.assert_close(gradient, of_grpo[name] + 0.1 * of_likelihood[name], rtol=1e-3, atol=2e-6)


def test_echo_without_observations_is_grpo(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", seed=3, hidden_size=32, heads=2)
    of_grpo, _ = step_of(model, "grpo", make_samples("grpo"))
    of_echo, result = step_of(model, "echo", make_samples("echo"))
    assert all(torch.equal(gradient, of_grpo[name]) for name, gradient in of_echo.items())
    assert result.metrics["actor/observation_loss"] == 0.0
