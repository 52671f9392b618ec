"""Advantages of tokens in a step of the torch engine: as if they had been known before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import StageSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch

Open = Callable[[StageSpec], TorchTrainerEngine]
Make = Callable[..., Any]
PLAIN = Optimizer(optimizer_type="sgd", lr=1.0, weight_decay=0.0, clip_grad=0.0)
GAMMA = 0.9


def step(open_engine: Open, stage: StageSpec, batch: TrainBatch) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    engine = open_engine(stage)
    before = {name: value.clone() for name, value in engine.tensors().items()}
    metrics = engine.train(batch).metrics
    return {name: before[name] - value for name, value in engine.tensors().items()}, metrics


def with_advantage(stage: StageSpec, name: str, **arguments: object) -> StageSpec:
    algorithm = msgspec.structs.replace(stage.algorithm, advantage=name, advantage_args=arguments)
    return msgspec.structs.replace(stage, algorithm=algorithm)


def discounted(batch: TrainBatch) -> TrainBatch:
    """The batch with whitened, discounted returns, written down as loops."""
    returns = []
    for sample in batch.samples:
        left = int(sample.loss_mask.sum())
        row = np.zeros(len(sample.loss_mask))
        for place, trained in enumerate(sample.loss_mask):
            if trained:
                left -= 1
                row[place] = GAMMA**left * sample.reward
        returns.append(row)
    every = np.concatenate([row[s.loss_mask != 0] for row, s in zip(returns, batch.samples, strict=True)])
    samples = [
        msgspec.structs.replace(sample, advantages=((row - every.mean()) / every.std(ddof=1)).astype(np.float32))
        for row, sample in zip(returns, batch.samples, strict=True)
    ]
    return msgspec.structs.replace(batch, samples=samples)


@pytest.mark.parametrize("budget_tokens", [24, 8192])
def test_token_advantages_see_the_whole_batch(
    open_engine: Open, make_stage: Make, make_batch: Make, budget_tokens: int
) -> None:
    batch = make_batch()
    known, _ = step(open_engine, make_stage(optimizer=PLAIN), discounted(batch))
    stage = with_advantage(make_stage(optimizer=PLAIN, budget_tokens=budget_tokens), "reinforceplusplus", gamma=GAMMA)
    found, metrics = step(open_engine, stage, batch)
    for name, value in known.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-6)
    assert metrics["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-6)


def test_what_costs_entropy_is_left_out_before_the_step(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    batch = make_batch()
    plain, _ = step(open_engine, make_stage(optimizer=PLAIN), batch)
    everything, _ = step(open_engine, with_advantage(make_stage(optimizer=PLAIN), "clipb", mu=100.0), batch)
    assert all(torch.equal(everything[name], value) for name, value in plain.items())
    some, metrics = step(open_engine, with_advantage(make_stage(optimizer=PLAIN), "clipb", mu=0.0), batch)
    assert any(not torch.equal(some[name], value) for name, value in plain.items())
    assert metrics["critic/advantages/max"] > 0 > metrics["critic/advantages/min"]
