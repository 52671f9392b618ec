"""A step on preferences against a loop of torch over whole pairs, and what the reference of a stage does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rftd.ops.errors import TrainError
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, LoraSpec, StageSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.stage.mismatched import mismatched

Open = Callable[[StageSpec], TorchTrainerEngine]
Make = Callable[..., Any]
BETA = 0.5


def pairs(step: int = 1, count: int = 5) -> TrainBatch:
    """Pairs of random answers of various lengths, some tokens masked."""
    rng = np.random.default_rng(step)
    samples = []
    for pair in range(count):
        prompt = rng.integers(7, 120, int(rng.integers(3, 9)))
        for chosen in (True, False):
            length = int(rng.integers(1, 8))
            mask = rng.random(length) < 0.8
            mask[-1] = True
            samples.append(
                TrainSample(
                    tokens=np.concatenate([prompt, rng.integers(7, 120, length)]).astype(np.uint32),
                    prompt_tokens=len(prompt),
                    loss_mask=mask.astype(np.uint8),
                    pair=pair,
                    chosen=chosen,
                )
            )
    return TrainBatch(step=step, stage_step=step, samples=samples)


@pytest.fixture
def make_dpo(make_stage: Make) -> Callable[..., StageSpec]:
    """A DPO stage; the KL term of the guide's default is left out unless it has a coefficient."""

    def make(*, kl_coef: float = 0.0, lr: float = 1.0, **settings: Any) -> StageSpec:
        algorithm = AlgorithmSpec(
            kind="dpo",
            advantage="none",
            policy_loss="dpo",
            policy_loss_args={"beta": BETA, "label_smoothing": 0.1},
            kl_loss="k2",
            kl_loss_args={"kl_coef": kl_coef},
            optimizer=Optimizer(optimizer_type="sgd", lr=lr, weight_decay=0.0, clip_grad=0.0),
        )
        stage: StageSpec = make_stage("sft", **settings)
        return msgspec.structs.replace(stage, name="dpo", algorithm=algorithm)

    return make


def looped(model: Path, reference: Path, samples: Sequence[TrainSample]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient: each response alone through the whole models, each pair by the formula."""
    policy, frozen = (AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32) for each in (model, reference))

    def likelihood(of: Any, sample: TrainSample) -> torch.Tensor:
        ids = torch.tensor(sample.tokens.astype(np.int64))[None]
        logits = of(input_ids=ids).logits[0, sample.prompt_tokens - 1 : -1]
        logprobs = torch.log_softmax(logits, -1).gather(1, ids[0, sample.prompt_tokens :, None])[:, 0]
        return (logprobs * torch.tensor(sample.loss_mask)).sum()

    total = torch.zeros(())
    numbers = sorted({sample.pair for sample in samples})
    for number in numbers:
        sums = {}
        for sample in samples:
            if sample.pair == number:
                with torch.no_grad():
                    base = likelihood(frozen, sample)
                sums[sample.chosen] = likelihood(policy, sample) - base
        z = BETA * (sums[True] - sums[False])
        loss = -0.9 * torch.nn.functional.logsigmoid(z) - 0.1 * torch.nn.functional.logsigmoid(-z)
        total = total + loss / len(numbers)
    total.backward()  # type: ignore[no-untyped-call]
    return total.item(), {name: parameter.grad for name, parameter in policy.named_parameters()}


@pytest.mark.parametrize("budget_tokens", [8192, 16])
@pytest.mark.parametrize("prefix_sharing", ["auto", "never"])
def test_the_gradient_is_that_of_the_formula(
    tiny_model: Path, tmp_path: Path, open_engine: Open, make_dpo: Make, prefix_sharing: str, budget_tokens: int
) -> None:
    engine = open_engine(make_dpo(prefix_sharing=prefix_sharing, budget_tokens=budget_tokens))
    engine.train(pairs(1))  # away from the reference
    engine.save(tmp_path, hf=True)
    before = {name: value.clone() for name, value in engine.tensors().items()}
    batch = pairs(2)
    order = np.random.default_rng(0).permutation(len(batch.samples))
    result = engine.train(msgspec.structs.replace(batch, samples=[batch.samples[i] for i in order]))
    loss, gradient = looped(tmp_path / "actor" / "huggingface", tiny_model, batch.samples)
    assert result.metrics["actor/dpo_loss"] == pytest.approx(loss, rel=1e-5)
    for name, value in gradient.items():
        torch.testing.assert_close(before[name] - engine.tensors()[name], value, rtol=1e-4, atol=5e-6)


def test_the_reference_is_kept_without_a_kl_term_and_saved(open_engine: Open, make_dpo: Make, tmp_path: Path) -> None:
    engine, twin = open_engine(make_dpo()), open_engine(make_dpo())
    first = engine.train(pairs(1)).metrics
    assert first["actor/chosen_reward"] == first["actor/rejected_reward"] == 0.0
    assert "actor/kl_loss" not in first
    assert "actor/kl_coef" not in first
    engine.save(tmp_path, hf=False)
    twin.load(tmp_path, make_dpo())
    one, two = engine.train(pairs(2)), twin.train(pairs(2))
    assert one.metrics["actor/chosen_reward"] != 0.0
    assert one.metrics == two.metrics
    assert engine.checksum() == twin.checksum()
    assert "actor/kl_loss" in open_engine(make_dpo(kl_coef=0.1)).train(pairs(1)).metrics


def test_pairs_without_trained_tokens_change_nothing(open_engine: Open, make_dpo: Make) -> None:
    engine, twin, batch = open_engine(make_dpo()), open_engine(make_dpo()), pairs(1)
    empty = [
        msgspec.structs.replace(each, pair=each.pair + 100, loss_mask=np.zeros_like(each.loss_mask))
        for each in pairs(3, 2).samples
    ]
    engine.train(msgspec.structs.replace(batch, samples=[*batch.samples, *empty]))
    twin.train(batch)
    for name, value in engine.tensors().items():
        torch.testing.assert_close(value, twin.tensors()[name], rtol=1e-5, atol=1e-6)


def test_an_adapter_is_compared_with_its_beginning(open_engine: Open, make_dpo: Make, tmp_path: Path) -> None:
    stage = make_dpo(lr=0.5)
    stage = msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, lora=LoraSpec(rank=4, alpha=8)))
    engine, twin = open_engine(stage), open_engine(stage)
    batch = pairs(1)
    figures = [engine.train(batch).metrics for _ in range(6)]
    assert figures[0]["actor/chosen_reward"] == figures[0]["actor/rejected_reward"] == 0.0
    margins = [each["actor/chosen_reward"] - each["actor/rejected_reward"] for each in figures]
    assert margins[-1] > margins[1] > 0
    assert figures[-1]["actor/dpo_loss"] < figures[0]["actor/dpo_loss"]
    engine.save(tmp_path, hf=False)
    twin.load(tmp_path, stage)
    assert twin.train(pairs(2)).metrics == engine.train(pairs(2)).metrics


def moved_of(policy: Any, frozen: Any, tokens: list[int], prompt_tokens: int, mask: list[int]) -> torch.Tensor:
    """The sum of logprob - reference logprob over the trained tokens of one response, alone through whole models."""
    ids = torch.tensor(tokens)[None]
    sums = []
    for model in (policy, frozen):
        logits = model(input_ids=ids).logits[0, prompt_tokens - 1 : -1]
        logprobs = torch.log_softmax(logits, -1).gather(1, ids[0, prompt_tokens:, None])[:, 0]
        sums.append((logprobs * torch.tensor(mask)).sum())
    return sums[0] - sums[1].detach()


@pytest.mark.parametrize("budget_tokens", [8192, 16])
def test_kto_measures_from_responses_to_other_prompts(
    tiny_model: Path, tmp_path: Path, open_engine: Open, make_dpo: Make, budget_tokens: int
) -> None:
    """Loss and gradient against a loop: prompts in the order of their bytes, each with what answers the next."""
    stage = make_dpo(budget_tokens=budget_tokens)
    algorithm = msgspec.structs.replace(
        stage.algorithm, kind="kto", policy_loss="kto", policy_loss_args={"beta": BETA, "undesirable_weight": 0.1}
    )
    engine = open_engine(msgspec.structs.replace(stage, algorithm=algorithm))
    batch = pairs(4, 6)
    for step in (1, 2, 3):
        engine.train(msgspec.structs.replace(batch, step=step, stage_step=step))  # away from the reference
    engine.save(tmp_path, hf=True)
    before = {name: value.clone() for name, value in engine.tensors().items()}
    result = engine.train(batch)

    policy: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "actor" / "huggingface", dtype=torch.float32)
    frozen: Any = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    prompts = sorted({sample.tokens[: sample.prompt_tokens].tobytes() for sample in batch.samples})
    found = []
    for sample in batch.samples:
        answered = prompts.index(sample.tokens[: sample.prompt_tokens].tobytes())
        prompt = np.frombuffer(prompts[answered - 1], np.uint32).tolist()
        response = sample.tokens[sample.prompt_tokens :].tolist()
        found.append(moved_of(policy, frozen, prompt + response, len(prompt), sample.loss_mask.tolist()).item())
    baseline = max(0.0, sum(found) / len(found))
    assert len(prompts) > 1
    assert baseline > 0
    assert result.metrics["actor/reference_kl"] == pytest.approx(baseline, rel=1e-4)

    total = torch.zeros(())
    for sample in batch.samples:
        moved = moved_of(policy, frozen, sample.tokens.tolist(), sample.prompt_tokens, sample.loss_mask.tolist())
        z = BETA * (moved - baseline)
        total = total + (1 - torch.sigmoid(z) if sample.chosen else 0.1 * (1 - torch.sigmoid(-z)))
    (total / len(batch.samples)).backward()  # type: ignore[no-untyped-call]
    assert result.metrics["actor/kto_loss"] == pytest.approx(total.item() / len(batch.samples), rel=1e-5)
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(before[name] - engine.tensors()[name], parameter.grad, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("budget_tokens", [8192, 16])
def test_kto_learns_the_same_of_pairs_and_of_their_answers_with_labels(
    open_engine: Open, make_dpo: Make, budget_tokens: int
) -> None:
    stage = make_dpo(budget_tokens=budget_tokens)
    arguments = {"beta": BETA, "undesirable_weight": 0.3}
    algorithm = msgspec.structs.replace(
        stage.algorithm, kind="kto", policy_loss="kto", policy_loss_args=arguments, kl_loss="none"
    )
    stage = msgspec.structs.replace(stage, algorithm=algorithm)
    one, other = open_engine(stage), open_engine(stage)
    for step in (1, 2):
        batch = msgspec.structs.replace(pairs(4, 6), step=step, stage_step=step)
        alone = [msgspec.structs.replace(each, pair=-1) for each in batch.samples]
        first = one.train(batch).metrics
        second = other.train(msgspec.structs.replace(batch, samples=alone)).metrics
        for name in ("kto_loss", "chosen_reward", "rejected_reward", "reference_kl"):
            assert first[f"actor/{name}"] == pytest.approx(second[f"actor/{name}"], rel=1e-5, abs=1e-7)
    assert first["actor/chosen_reward"] > first["actor/rejected_reward"]
    for name, value in one.tensors().items():
        torch.testing.assert_close(value, other.tensors()[name], rtol=1e-5, atol=2e-6)


def test_kto_of_rows_without_labels_is_refused(open_engine: Open, make_dpo: Make) -> None:
    stage = make_dpo()
    algorithm = msgspec.structs.replace(stage.algorithm, kind="kto", policy_loss="kto", policy_loss_args={})
    engine = open_engine(msgspec.structs.replace(stage, algorithm=algorithm))
    batch = pairs(1)
    bare = [msgspec.structs.replace(each, pair=-1, chosen=None) for each in batch.samples]
    with pytest.raises(TrainError, match="without labels"):
        engine.train(msgspec.structs.replace(batch, samples=bare))


def test_kto_of_one_prompt_and_of_responses_too_long_for_another() -> None:
    short = pairs(1, 2).samples[0]
    long = pairs(2, 2).samples[0]
    assert mismatched([short, short], 99) == []
    found = mismatched([short, long], max_tokens=max(short.prompt_tokens, long.prompt_tokens) + 1)
    assert all(len(each.tokens) <= max(short.prompt_tokens, long.prompt_tokens) + 1 for each in found)
    assert all(len(each.loss_mask) == len(each.tokens) - each.prompt_tokens for each in found)
    assert mismatched([short, long], max_tokens=2) == []
