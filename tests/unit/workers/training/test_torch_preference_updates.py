"""Losses of preferences over mini-batches, against loops in float64 of their papers' formulas, response by response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.plain_loops import logprobs_of, plain_model, relative, weights_of
from torch.nn.functional import logsigmoid

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, StageSpec
from rftd.streams.spec.stage_parts import UpdatesSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch, TrainSample

Make = Callable[..., Any]
Open = Callable[..., TorchTrainerEngine]
Side = tuple[torch.Tensor, torch.Tensor]
"""Log-probabilities of one response's trained tokens, under the policy and under the reference."""
SGD = Optimizer(optimizer_type="sgd", lr=0.05, weight_decay=0.0, clip_grad=0.0)


def moved(side: Side) -> torch.Tensor:
    return side[0].sum() - side[1].sum()


def dpo(chosen: Side, rejected: Side) -> torch.Tensor:
    return -logsigmoid(0.5 * (moved(chosen) - moved(rejected)))


def ipo(chosen: Side, rejected: Side) -> torch.Tensor:
    """Azar et al. 2023, equation 17."""
    return (moved(chosen) - moved(rejected) - 1 / (2 * 0.5)) ** 2


def ipo_by_tokens(chosen: Side, rejected: Side) -> torch.Tensor:
    """The same of means, as TRL has it."""
    gain, loss = ((now - reference).mean() for now, reference in (chosen, rejected))
    return (gain - loss - 1 / (2 * 0.2)) ** 2


def simpo(chosen: Side, rejected: Side) -> torch.Tensor:
    """Meng et al. 2024, equation 6."""
    return -logsigmoid(2.0 * chosen[0].mean() - 2.0 * rejected[0].mean() - 0.7)


def orpo(chosen: Side, rejected: Side) -> torch.Tensor:
    """Hong et al. 2024, equations 6 and 7."""
    good, bad = (side[0].mean().exp() for side in (chosen, rejected))
    return -chosen[0].mean() - 0.3 * logsigmoid(torch.log(good / (1 - good)) - torch.log(bad / (1 - bad)))


PAIRED: dict[str, tuple[str, dict[str, Any], Callable[[Side, Side], torch.Tensor]]] = {
    "dpo": ("dpo", {"beta": 0.5}, dpo),
    "ipo": ("ipo", {"beta": 0.5, "per_token_mean": False}, ipo),
    "ipo by tokens": ("ipo", {"beta": 0.2}, ipo_by_tokens),
    "simpo": ("simpo", {"beta": 2.0, "gamma": 0.7}, simpo),
    "orpo": ("orpo", {"beta": 0.3}, orpo),
}


def stage_of(
    make_stage: Make,
    loss: str,
    arguments: dict[str, Any],
    updates: UpdatesSpec,
    budget: int,
    optimizer: Optimizer = SGD,
) -> StageSpec:
    stage: StageSpec = make_stage("sft", budget_tokens=budget)
    algorithm = AlgorithmSpec(
        kind=loss, advantage="none", policy_loss=loss, policy_loss_args=arguments, kl_loss="none", optimizer=optimizer
    )
    trainer = msgspec.structs.replace(stage.trainer, updates=updates)
    return msgspec.structs.replace(stage, algorithm=algorithm, trainer=trainer)


def answer(rng: np.random.Generator, prompt: Any, **label: Any) -> TrainSample:
    length = int(rng.integers(2, 7))
    mask = rng.random(length) < 0.8
    mask[-1] = True
    tokens = np.concatenate([prompt, rng.integers(7, 120, length)]).astype(np.uint32)
    return TrainSample(tokens=tokens, prompt_tokens=len(prompt), loss_mask=mask.astype(np.uint8), **label)


def pairs_batch() -> TrainBatch:
    """Six pairs of random answers, some tokens masked."""
    rng = np.random.default_rng(2)
    samples = []
    for pair in range(6):
        prompt = rng.integers(7, 120, int(rng.integers(3, 6)))
        samples += [answer(rng, prompt, pair=pair, chosen=chosen) for chosen in (True, False)]
    return TrainBatch(step=1, stage_step=1, samples=samples)


def labels_batch() -> TrainBatch:
    """Eleven answers, two of them to one prompt: eight desirable ones, the others not."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(7, 120, int(rng.integers(3, 6))) for _ in range(10)]
    samples = [answer(rng, prompt, chosen=number % 4 != 1) for number, prompt in enumerate([*prompts, prompts[4]])]
    return TrainBatch(step=1, stage_step=1, samples=samples)


def trained(policy: Any, sample: TrainSample) -> torch.Tensor:
    """Log-probabilities of the trained tokens."""
    return logprobs_of(policy, sample)[torch.tensor(sample.loss_mask) != 0]


@pytest.mark.parametrize("budget_tokens", [24, 8192])
@pytest.mark.parametrize("name", PAIRED)
def test_a_preference_is_one_item(
    tiny_model: Path, open_engine: Open, make_stage: Make, name: str, budget_tokens: int
) -> None:
    """Two epochs of three mini-batches: the mean over the pairs of each; a pair is never parted."""
    loss, arguments, formula = PAIRED[name]
    batch = pairs_batch()
    optimizer = msgspec.structs.replace(SGD, lr=0.002) if name == "ipo" else SGD  # as far as float32 goes along
    updates = UpdatesSpec(epochs=2, mini_batch_items=2)
    engine = open_engine(stage_of(make_stage, loss, arguments, updates, budget_tokens, optimizer))
    before = weights_of(engine)
    assert engine.train(batch).metrics["actor/optimizer_steps"] == 6
    policy = plain_model(tiny_model)
    made = torch.optim.SGD(policy.parameters(), lr=optimizer.lr)
    with torch.no_grad():
        reference = [trained(policy, sample) for sample in batch.samples]
    for first in [0, 2, 4] * 2:
        numbers = range(2 * first, 2 * first + 4)
        sides = [(trained(policy, batch.samples[number]), reference[number]) for number in numbers]
        made.zero_grad()
        torch.stack([formula(sides[0], sides[1]), formula(sides[2], sides[3])]).mean().backward()  # type: ignore[no-untyped-call]
        made.step()
    expected = {name: value.detach() for name, value in policy.named_parameters()}
    assert relative(weights_of(engine), expected, before) < 1e-5


def shifted(samples: Sequence[TrainSample]) -> list[TrainSample]:
    """Each answer after the prompt that comes before its own, in the order of their bytes; the first after the last."""
    texts = [sample.tokens[: sample.prompt_tokens].tobytes() for sample in samples]
    order = sorted(set(texts))
    found = []
    for sample, text in zip(samples, texts, strict=True):
        prompt = np.frombuffer(order[order.index(text) - 1], np.uint32)
        tokens = np.concatenate([prompt, sample.tokens[sample.prompt_tokens :]])
        found.append(msgspec.structs.replace(sample, tokens=tokens, prompt_tokens=len(prompt)))
    return found


@pytest.mark.parametrize("budget_tokens", [24, 8192])
@pytest.mark.parametrize("rows", ["pairs", "labels"])
def test_kto_counts_each_response_of_a_mini_batch(
    tiny_model: Path, open_engine: Open, make_stage: Make, rows: str, budget_tokens: int
) -> None:
    """Three batches of two epochs: how far the policy has moved at all is seen before each batch, once."""
    batch, size, items = (pairs_batch(), 4, 2) if rows == "pairs" else (labels_batch(), 4, 4)
    arguments = {"beta": 0.5, "desirable_weight": 1.3, "undesirable_weight": 0.1}
    updates = UpdatesSpec(epochs=2, mini_batch_items=items)
    faster = msgspec.structs.replace(SGD, lr=0.5)
    engine = open_engine(stage_of(make_stage, "kto", arguments, updates, budget_tokens, faster))
    before = weights_of(engine)
    policy, frozen = plain_model(tiny_model), plain_model(tiny_model)
    made = torch.optim.SGD(policy.parameters(), lr=faster.lr)
    with torch.no_grad():
        reference = [trained(frozen, sample).sum() for sample in batch.samples]
    numbers = list(range(len(batch.samples)))
    moved_at_all = []
    for step in (1, 2, 3):
        found = engine.train(msgspec.structs.replace(batch, step=step, stage_step=step)).metrics
        with torch.no_grad():
            gaps = [trained(policy, each).sum() - trained(frozen, each).sum() for each in shifted(batch.samples)]
        z = torch.stack(gaps).mean().clamp(min=0)
        moved_at_all.append(float(z))
        assert found["actor/reference_kl"] == pytest.approx(float(z), rel=1e-4, abs=1e-6)
        for start in [*range(0, len(numbers), size)] * 2:
            losses = []
            for number in numbers[start : start + size]:
                m = trained(policy, batch.samples[number]).sum() - reference[number]
                good = batch.samples[number].chosen
                ahead = 0.5 * (m - z) if good else 0.5 * (z - m)
                losses.append((1.3 if good else 0.1) * (1 - torch.sigmoid(ahead)))
            made.zero_grad()
            torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
            made.step()
    assert moved_at_all[0] == 0
    assert max(moved_at_all) > 0.01
    expected = {name: value.detach() for name, value in policy.named_parameters()}
    assert relative(weights_of(engine), expected, before) < 1e-5
