"""A KL penalty before a group's normalisation: as verl's apply_kl_penalty, then the group's function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.plain_loops import logprobs_of, near_policy, plain_model, relative, weights_of

from rftd.ops.errors import ConfigError, TrainError
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_parts import UpdatesSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.learning.losses.objective import Objective

Make = Callable[..., Any]
Open = Callable[..., TorchTrainerEngine]
SGD = Optimizer(optimizer_type="sgd", lr=0.5, weight_decay=0.0, clip_grad=0.0)
COEF = 0.5


def stage_of(make_stage: Make, updates: UpdatesSpec, **algorithm: Any) -> StageSpec:
    stage: StageSpec = make_stage(budget_tokens=40, optimizer=SGD)
    return msgspec.structs.replace(
        stage,
        algorithm=msgspec.structs.replace(stage.algorithm, **algorithm),
        trainer=msgspec.structs.replace(stage.trainer, updates=updates),
    )


def penalty(place: str, **more: Any) -> dict[str, Any]:
    return {"kl_penalty": "k1", "kl_penalty_args": {"kl_coef": COEF}, "kl_penalty_place": place} | more


def some_masked(batch: TrainBatch) -> TrainBatch:
    """One response is not trained: it has no penalty, and its reward counts in its group."""
    samples = [*batch.samples]
    samples[6] = msgspec.structs.replace(samples[6], loss_mask=np.zeros_like(samples[6].loss_mask), reward=3.0)
    return msgspec.structs.replace(batch, samples=samples)


def normalised(model: Path, batch: TrainBatch) -> TrainBatch:
    """The batch with the advantages of verl's formula: (R - mean) / (std + 1e-6), R = r - coef * sum of KL."""
    reference = plain_model(model)
    scores = []
    for sample in batch.samples:
        assert sample.logprobs is not None
        with torch.no_grad():
            gap = sample.logprobs.astype(np.float64) - logprobs_of(reference, sample).numpy()
        scores.append(sample.reward - COEF * float((gap * sample.loss_mask).sum()))
    samples = []
    for sample in batch.samples:
        group = [score for score, each in zip(scores, batch.samples, strict=True) if each.group == sample.group]
        own = scores[len(samples)]
        value = (own - np.mean(group)) / (np.std(group, ddof=1) + 1e-6)
        samples.append(msgspec.structs.replace(sample, advantages=np.full(len(sample.loss_mask), value, np.float32)))
    return msgspec.structs.replace(batch, samples=samples)


@pytest.mark.parametrize("updates", [UpdatesSpec(), UpdatesSpec(epochs=2, mini_batch_items=4, shuffle=True)])
def test_the_penalty_is_part_of_the_normalised_reward(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, updates: UpdatesSpec
) -> None:
    batch = some_masked(near_policy(tiny_model, make_batch()))
    engine = open_engine(stage_of(make_stage, updates, **penalty("before")))
    known = open_engine(stage_of(make_stage, updates))
    start = weights_of(engine)
    metrics = engine.train(batch).metrics
    known.train(normalised(tiny_model, batch))
    expected = {name: value.double() for name, value in weights_of(known).items()}
    assert relative(weights_of(engine), expected, start) < 1e-5
    assert metrics["critic/kl_coef"] == COEF
    after = open_engine(stage_of(make_stage, updates, **penalty("after")))
    after.train(batch)
    assert relative(weights_of(after), expected, start) > 0.01


def test_rows_of_an_expert_have_no_group(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    """They keep their advantage of zero in a mixed batch."""
    batch = make_batch()
    samples = [
        msgspec.structs.replace(each, expert=True, group=-1, reward=50.0 + number) if number >= 12 else each
        for number, each in enumerate(batch.samples)
    ]
    engine = open_engine(stage_of(make_stage, UpdatesSpec(), **penalty("before")))
    without = open_engine(stage_of(make_stage, UpdatesSpec(), **penalty("before"), loss_agg_mode="seq-mean-token-sum"))
    assert engine.train(msgspec.structs.replace(batch, samples=samples)).metrics["critic/advantages/max"] < 2.0
    assert without.train(msgspec.structs.replace(batch, samples=samples[:12])).metrics["critic/advantages/max"] < 2.0


@pytest.mark.parametrize("name", ["ppo", "opo", "remax", "twice"])
def test_what_is_more_than_rewards_is_refused(make_stage: Make, name: str) -> None:
    twice = {"duplicate_experiences": True, "std_threshold": 0.0}
    parts = {"advantage": "grpo", "advantage_args": twice} if name == "twice" else {"advantage": name}
    algorithm = stage_of(make_stage, UpdatesSpec(), **penalty("before", **parts)).algorithm
    with pytest.raises(ConfigError, match=f"is before, but {parts['advantage']}") as raised:
        Objective.of(algorithm)
    assert raised.value.field == "algorithm.kl_penalty_place"


def test_rollouts_of_several_steps_are_refused(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    engine = open_engine(stage_of(make_stage, UpdatesSpec(), **penalty("before")))
    batch = msgspec.structs.replace(make_batch(), items=[2] * 8)
    with pytest.raises(TrainError, match="a rollout of several steps") as raised:
        engine.train(batch)
    assert "kl_penalty_place" in str(raised.value.fix)
