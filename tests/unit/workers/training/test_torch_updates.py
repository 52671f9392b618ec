"""Several optimizer steps per batch against loops of torch.optim in float64, one whole response at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.plain_loops import (
    MODES,
    Response,
    in_order,
    logprobs_of,
    near_policy,
    plain_loop,
    plain_model,
    relative,
    weights_of,
)
from synthetic.models.tiny_models import make_model

from rftd.storage.files.checkpoints import commit_folder
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_parts import CorrectionPart, CorrectionSpec, UpdatesSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.stage.updates import mini_batches

Make = Callable[..., Any]
Open = Callable[..., TorchTrainerEngine]
SGD = Optimizer(optimizer_type="sgd", lr=0.5, weight_decay=0.0, clip_grad=0.0, decay_all=True)
ADAM = Optimizer(optimizer_type="adamw", lr=1e-3, weight_decay=0.0, clip_grad=1.0)
DECOUPLED = CorrectionSpec(old_logprobs="recomputed", parts=(CorrectionPart(kind="decoupled", args={"cap": 1.2}),))


def clipped(advantage: float, ratio: torch.Tensor, low: float = 0.2, high: float = 0.2, dual: float = 3.0) -> Any:
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))
    return torch.minimum(loss, torch.full_like(loss, -advantage * dual)) if advantage < 0 else loss


def ppo(of: Response) -> torch.Tensor:
    found: torch.Tensor = clipped(of.advantage, (of.now - of.rollout).exp())
    return found


def decoupled(of: Response) -> torch.Tensor:
    """Hilton et al. 2022: the trust region is about the weights before the batch, w corrects for the rollouts'."""
    weight = (of.start - of.rollout).exp().clamp(max=1.2)
    found: torch.Tensor = weight * clipped(of.advantage, (of.now - of.start).exp())
    return found


def gspo(of: Response) -> torch.Tensor:
    mean = (of.now - of.rollout).mean().detach()
    ratio = (of.now - of.now.detach() + mean).exp()
    found: torch.Tensor = clipped(of.advantage, ratio, 3e-4, 4e-4, dual=float("inf"))
    return found


def cispo(of: Response) -> torch.Tensor:
    return -of.advantage * (of.now - of.rollout).exp().clamp(0.0, 1.28).detach() * of.now


def sft(of: Response) -> torch.Tensor:
    return -of.now


def gmpo(of: Response) -> torch.Tensor:
    """Zhao et al. 2025, equation 4: the geometric mean of min(r A, clip(r) A), of which only A has a sign."""
    ratio = (of.now - of.rollout).exp()
    sign = 1.0 if of.advantage >= 0 else -1.0
    followed = sign * torch.minimum(sign * ratio, sign * ratio.clamp(math.exp(-0.4), math.exp(0.4)))
    found = -of.advantage * followed.prod() ** (1 / len(followed))
    return found.expand(len(followed))


def gpg(of: Response) -> torch.Tensor:
    """Chu et al. 2025: the plain policy gradient."""
    return -of.advantage * of.now


def vespo(of: Response) -> torch.Tensor:
    """Shen et al. 2026: w^k e^(lambda (1 - w)) of the whole response's ratio, without a gradient."""
    w = (of.now - of.rollout).detach().exp().prod()
    k, decay = (2.0, 3.0) if of.advantage >= 0 else (3.0, 2.0)
    return -of.advantage * w**k * (decay * (1 - w)).exp() * of.now


def luspo(of: Response) -> torch.Tensor:
    """Liu et al. 2026: GSPO's clipped ratio of the response for each of its tokens, so their sum is length times it."""
    ratio = (of.now - of.rollout).exp().prod() ** (1 / len(of.now))
    found: torch.Tensor = clipped(of.advantage, ratio, 0.05, 0.1, dual=float("inf"))
    return found.expand(len(of.now))


def k3(gap: torch.Tensor) -> torch.Tensor:
    return (-gap).exp() - 1 + gap


KLS: dict[str, Callable[[Response, torch.Tensor], torch.Tensor]] = {
    "k1": lambda of, gap: gap,
    "k2": lambda of, gap: gap.square() / 2,
    "k3": lambda of, gap: k3(gap),
    "low_var_kl": lambda of, gap: k3(gap.clamp(-20, 20)).clamp(-10, 10),
    "abs": lambda of, gap: gap.abs(),
    "corrected_k3": lambda of, gap: (of.now - of.rollout).detach().exp().clamp(max=2.0) * k3(gap),
}
LOSSES: dict[str, tuple[dict[str, Any], Callable[[Response], torch.Tensor]]] = {
    "ppo": ({}, ppo),
    "decoupled": ({"correction": DECOUPLED}, decoupled),
    "gspo": ({"policy_loss": "gspo"}, gspo),
    "cispo": ({"policy_loss": "cispo"}, cispo),
    "gmpo": ({"policy_loss": "gmpo"}, gmpo),
    "gpg": ({"kind": "gpg", "policy_loss": "opmd", "policy_loss_args": {"tau": 0.0}}, gpg),
    "vespo": ({"policy_loss": "vespo"}, vespo),
    "luspo": ({"policy_loss": "gspo", "policy_loss_args": {"clip_range_low": 0.05, "clip_range_high": 0.1}}, luspo),
    "sft": ({"kind": "sft", "advantage": "none", "policy_loss": "sft"}, sft),
}


def in_pairs(names: Iterable[str], *in_every_mode: str) -> list[tuple[str, str]]:
    """Each name with the mean over tokens, and some with every aggregation, which knows nothing of the loss."""
    return [(name, mode) for name in names for mode in MODES if mode == MODES[0] or name in in_every_mode]


def stage_of(
    make_stage: Make, updates: UpdatesSpec, *, budget_tokens: int = 40, mode: str = "token-mean", **algorithm: Any
) -> StageSpec:
    stage: StageSpec = make_stage(budget_tokens=budget_tokens, mode=mode, optimizer=SGD)
    return msgspec.structs.replace(
        stage,
        algorithm=msgspec.structs.replace(stage.algorithm, **algorithm),
        trainer=msgspec.structs.replace(stage.trainer, updates=updates),
    )


@pytest.mark.parametrize(("name", "mode"), in_pairs(LOSSES, "ppo", "gspo"))
def test_the_steps_are_those_of_a_plain_loop(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, name: str, mode: str
) -> None:
    """Two epochs of four mini-batches, each aggregated by itself, to old log-probabilities that stay."""
    algorithm, loss = LOSSES[name]
    batch = near_policy(tiny_model, make_batch())
    rate = 0.05 if mode == "seq-mean-token-sum" else 0.5  # as far as float32 and float64 stay together
    optimizer = msgspec.structs.replace(SGD, lr=rate)
    updates = UpdatesSpec(epochs=2, mini_batch_items=4)
    engine = open_engine(stage_of(make_stage, updates, mode=mode, optimizer=optimizer, **algorithm))
    before = weights_of(engine)
    metrics = engine.train(batch).metrics
    expected = plain_loop(tiny_model, batch, in_order(batch, 4, 2), loss, mode, optimizer)
    assert relative(weights_of(engine), expected, before) < 1e-5
    assert metrics["actor/optimizer_steps"] == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    in_pairs([name for name in KL_LOSSES.names() if KL_LOSSES.builtin(name) and name != "none"], "k2"),
)
def test_the_distance_to_the_reference_is_that_of_each_step(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, name: str, mode: str
) -> None:
    """The reference is the stage's beginning, which is the batch's; its log-probabilities stay."""

    def loss(of: Response) -> torch.Tensor:
        return ppo(of) + 0.5 * KLS[name](of, of.now - of.start)

    batch = near_policy(tiny_model, make_batch())
    optimizer = msgspec.structs.replace(SGD, lr=0.05 if mode == "seq-mean-token-sum" else 0.5)
    updates = UpdatesSpec(epochs=2, mini_batch_items=4)
    kl = {"kl_loss": name, "kl_loss_args": {"kl_coef": 0.5}}
    engine = open_engine(stage_of(make_stage, updates, mode=mode, optimizer=optimizer, **kl))
    before = weights_of(engine)
    engine.train(batch)
    expected = plain_loop(tiny_model, batch, in_order(batch, 4, 2), loss, mode, optimizer)
    assert relative(weights_of(engine), expected, before) < 1e-5


@pytest.mark.parametrize(
    ("family", "optimizer"),
    [
        *((family, SGD) for family in ("llama", "qwen3", "gpt2", "gpt_neox", "mistral_sliding")),
        # Not of those whose keys have a bias: its gradient is 0, and AdamW divides rounding by itself.
        *((family, ADAM) for family in ("qwen3", "mistral_sliding")),
    ],
)
def test_every_family_makes_the_steps_of_a_plain_loop(
    tmp_path: Path, open_engine: Open, make_stage: Make, make_batch: Make, family: str, optimizer: Optimizer
) -> None:
    """Three epochs of decoupled PPO."""
    folder = make_model(tmp_path / family, family, seed=3)
    batch = near_policy(folder, make_batch())
    stage = stage_of(make_stage, UpdatesSpec(epochs=3, mini_batch_items=8), optimizer=optimizer, correction=DECOUPLED)
    engine = open_engine(stage, folder)
    engine.train(batch)
    expected = plain_loop(folder, batch, in_order(batch, 8, 3), decoupled, "token-mean", optimizer)
    assert relative(weights_of(engine), expected) < 1e-5


@pytest.mark.parametrize("name", ["ppo", "decoupled"])
def test_clips_bind_from_the_second_step_on(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, name: str
) -> None:
    """The first step's ratio is 1 on policy, so nothing is clipped; the second epoch meets other weights."""
    policy = plain_model(tiny_model)
    with torch.no_grad():
        samples = [
            msgspec.structs.replace(each, logprobs=logprobs_of(policy, each).numpy().astype(np.float32))
            for each in make_batch().samples
        ]
    batch = msgspec.structs.replace(make_batch(), samples=samples)
    algorithm = {**LOSSES[name][0], "optimizer": msgspec.structs.replace(SGD, lr=20.0)}
    once = open_engine(stage_of(make_stage, UpdatesSpec(), **algorithm)).train(batch).metrics
    twice = open_engine(stage_of(make_stage, UpdatesSpec(epochs=2), **algorithm)).train(batch).metrics
    assert once["actor/pg_clipfrac"] == 0
    assert abs(once["actor/ppo_kl"]) < 1e-6
    assert twice["actor/pg_clipfrac"] > 0.05
    assert abs(twice["actor/ppo_kl"]) > 1e-3
    assert twice["mismatch/ratio/max"] > 1.2 > 1.0001 > once["mismatch/ratio/max"]
    assert "actor/optimizer_steps" not in once


def test_an_epoch_may_have_an_order_of_its_own(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    """A function of seed, step and epoch, over whole items; each epoch has every sample once."""
    batch = msgspec.structs.replace(make_batch(), items=[2, 1, 1, 3, 1, 2, 2, 4])
    spec = UpdatesSpec(epochs=3, mini_batch_items=2, shuffle=True)
    found = mini_batches(batch, spec, seed=5)
    assert len(found) == 12
    epochs = [found[start : start + 4] for start in (0, 4, 8)]
    for epoch in epochs:
        assert sorted(number for numbers in epoch for number in numbers) == list(range(16))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    first = {numbers for numbers in mini_batches(batch, msgspec.structs.replace(spec, mini_batch_items=1), seed=5)}
    assert {(0, 1), (4, 5, 6), (12, 13, 14, 15)} <= first, "an item's samples stay together"
    assert mini_batches(batch, spec, seed=5) == found
    assert mini_batches(batch, spec, seed=6) != found
    assert mini_batches(msgspec.structs.replace(batch, step=2), spec, seed=5) != found
    assert mini_batches(batch, UpdatesSpec(mini_batch_items=3), seed=5)[-1] == (10, 11, 12, 13, 14, 15)
    assert mini_batches(batch, UpdatesSpec(), seed=5) == [tuple(range(16))]


def test_a_shuffled_batch_keeps_what_was_computed_of_the_whole(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make
) -> None:
    """Old log-probabilities of a sample follow it into other mini-batches."""
    batch = near_policy(tiny_model, make_batch())
    spec = UpdatesSpec(epochs=3, mini_batch_items=4, shuffle=True)
    engine = open_engine(stage_of(make_stage, spec, **LOSSES["decoupled"][0]))
    before = weights_of(engine)
    engine.train(batch)
    steps = mini_batches(batch, spec, seed=engine._seed)
    expected = plain_loop(tiny_model, batch, steps, decoupled, "token-mean", SGD)
    assert relative(weights_of(engine), expected, before) < 1e-5


def test_schedules_count_batches(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    """Each step of a batch has the same learning rate, and an adaptive coefficient changes once, as in verl."""
    optimizer = Optimizer(optimizer_type="sgd", lr=0.4, lr_warmup_steps=4, weight_decay=0.0, clip_grad=0.0)
    adaptive = {"kl_coef": 0.1, "adaptive": True, "target_kl": 1e-9, "horizon": 160}
    stage = stage_of(
        make_stage, UpdatesSpec(epochs=2, mini_batch_items=4), optimizer=optimizer, kl_loss="k2", kl_loss_args=adaptive
    )
    engine = open_engine(stage)
    found = [engine.train(make_batch(step)).metrics for step in (1, 2, 3)]
    assert [each["actor/lr"] for each in found] == pytest.approx([0.1, 0.2, 0.3])
    assert [each["actor/kl_coef"] for each in found] == pytest.approx([0.1, 0.102, 0.10404])


def test_one_mini_batch_that_is_not_finite_is_left_out(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make
) -> None:
    batch = near_policy(tiny_model, make_batch())
    huge = np.full(len(batch.samples[5].loss_mask), -3e38, np.float32)
    samples = [*batch.samples]
    samples[5] = msgspec.structs.replace(samples[5], advantages=huge)
    poisoned = msgspec.structs.replace(batch, samples=samples)
    engine = open_engine(stage_of(make_stage, UpdatesSpec(epochs=2, mini_batch_items=4)))
    before = weights_of(engine)
    result = engine.train(poisoned)
    assert not result.skipped
    assert result.metrics["actor/nonfinite_mini_batches"] == 2
    assert all(np.isfinite(value) for value in result.metrics.values())
    steps = [numbers for numbers in in_order(batch, 4, 2) if 5 not in numbers]
    assert relative(weights_of(engine), plain_loop(tiny_model, batch, steps, ppo, "token-mean", SGD), before) < 1e-5
    whole = open_engine(stage_of(make_stage, UpdatesSpec(epochs=2)))
    checksum = whole.checksum()
    assert "the loss is" in whole.train(poisoned).skipped
    assert whole.checksum() == checksum


def test_a_mini_batch_without_trained_tokens_makes_no_step(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make
) -> None:
    """Neither as a step of AdamW, whose moments would move, nor in the means of figures, nor as a finite one."""
    batch = near_policy(tiny_model, make_batch())
    samples = [
        msgspec.structs.replace(each, loss_mask=np.zeros_like(each.loss_mask)) if 4 <= number < 8 else each
        for number, each in enumerate(batch.samples)
    ]
    masked = msgspec.structs.replace(batch, samples=samples)
    kept = msgspec.structs.replace(batch, samples=[*samples[:4], *samples[8:]])
    stage = stage_of(make_stage, UpdatesSpec(mini_batch_items=4), optimizer=Optimizer(lr=1e-3, decay_all=True))
    one = open_engine(stage)
    other = open_engine(stage)
    found = one.train(masked).metrics
    expected = other.train(kept).metrics
    assert one.checksum() == other.checksum()
    assert found["actor/grad_norm"] == expected["actor/grad_norm"]
    huge = [
        msgspec.structs.replace(each, advantages=np.full(len(each.loss_mask), -3e38, np.float32)) for each in samples
    ]
    before = one.checksum()
    assert one.train(msgspec.structs.replace(masked, step=2, stage_step=2, samples=huge)).skipped
    assert one.checksum() == before


def critic_stage(make_stage: Make, model: Path, updates: UpdatesSpec, critic: UpdatesSpec | None = None) -> StageSpec:
    """PPO with returns that are the rewards."""
    stage = stage_of(make_stage, updates, advantage="ppo", advantage_args={"lam": 1.0})
    trainer = msgspec.structs.replace(
        stage.trainer,
        critic_path=str(model),
        critic_updates=critic,
        engine_args={"critic_lr": 0.02, "critic_clip": 0.1, "critic_grad_clip": 1e9},
    )
    return msgspec.structs.replace(stage, trainer=trainer)


def value_head_of(model: Path, batch: TrainBatch, steps: Sequence[Sequence[int]]) -> torch.Tensor:
    """A critic's head after these steps: every return is the reward, every value was 0."""
    decoder = plain_model(model).get_decoder()
    head = torch.nn.Linear(decoder.config.hidden_size, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(head.weight)
    made = torch.optim.AdamW([*decoder.parameters(), *head.parameters()], lr=0.02, weight_decay=0.01)
    for numbers in steps:
        errors = []
        for number in numbers:
            sample = batch.samples[number]
            ids = torch.tensor(sample.tokens.astype(np.int64))[None]
            states = decoder(input_ids=ids).last_hidden_state[0, sample.prompt_tokens - 1 : -1]
            values = head(states)[torch.tensor(sample.loss_mask) != 0, 0]
            near = values.clamp(-0.1, 0.1)
            errors.append(torch.maximum((values - sample.reward).square(), (near - sample.reward).square()))
        made.zero_grad()
        (0.5 * torch.cat(errors).mean()).backward()
        made.step()
    return head.weight.detach()


@pytest.mark.parametrize("own", [None, UpdatesSpec(epochs=3, mini_batch_items=16)])
def test_the_critic_makes_as_many_steps(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, own: UpdatesSpec | None
) -> None:
    """The policy's, or its own number; its values before the batch and its returns stay."""
    batch = near_policy(tiny_model, make_batch())
    updates = UpdatesSpec(epochs=2, mini_batch_items=8)
    engine = open_engine(critic_stage(make_stage, tiny_model, updates, own))
    metrics = engine.train(batch).metrics
    assert metrics["critic/vf_clipfrac"] > 0
    assert metrics["critic/values/mean"] == 0
    assert engine._learner is not None
    critic = engine._learner.critic
    assert critic is not None
    steps = in_order(batch, 8, 2) if own is None else in_order(batch, 16, 3)
    head = critic.model.parameters["head.weight"].detach().double()
    expected = value_head_of(tiny_model, batch, steps)
    assert float((head - expected).norm() / expected.norm()) < 1e-4
    alone = open_engine(critic_stage(make_stage, tiny_model, updates))
    alone.train(batch)
    assert engine.checksum() == alone.checksum(), "the policy's steps are its own"


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_checkpoint_resumes_between_batches(
    tmp_path: Path, tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, shuffle: bool
) -> None:
    updates = UpdatesSpec(epochs=2, mini_batch_items=4, shuffle=shuffle)
    stage = critic_stage(make_stage, tiny_model, updates)
    whole = open_engine(stage)
    whole.train(make_batch(1))
    folder = tmp_path / "global_step_1"
    commit_folder(folder, lambda temporary: whole.save(temporary, hf=False))
    resumed = open_engine(stage)
    resumed.load(folder, stage)
    for step in (2, 3):
        assert whole.train(make_batch(step)).metrics == resumed.train(make_batch(step)).metrics
        assert whole.checksum() == resumed.checksum()
