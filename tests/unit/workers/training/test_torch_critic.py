"""A critic beside the policy, and a teacher: what they learn, what they cost, what a checkpoint holds of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.spec import StageSpec
from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.learner.learner import ModelCritic
from rftd.workers.engines.torch.trainer.arguments import TorchTrainerArgs
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.engines.torch.trainer.passes import TorchPasses, ValueModel
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.stage.batch_pass import Passed
from rftd.workers.learning.stage.steps import value_loss
from rftd.workers.models.tiny_model import make_tiny_model

Make = Callable[..., StageSpec]
MakeBatch = Callable[..., TrainBatch]
Open = Callable[[StageSpec], TorchTrainerEngine]


def advantage(stage: StageSpec, name: str, args: dict[str, Any] | None = None, **trainer: Any) -> StageSpec:
    """The stage with this advantage function, and fields of its trainer."""
    return msgspec.structs.replace(
        stage,
        algorithm=msgspec.structs.replace(stage.algorithm, advantage=name, advantage_args=args or {}),
        trainer=msgspec.structs.replace(stage.trainer, **trainer),
    )


def with_critic(stage: StageSpec, model: Path, *, warmup: int = 0, lr: float = 3e-3, lam: float = 1.0) -> StageSpec:
    """The stage with `ppo`'s advantages."""
    return advantage(
        stage,
        "ppo",
        {"lam": lam},
        critic_path=str(model),
        critic_warmup_steps=warmup,
        engine_args={"critic_lr": lr},
    )


def rewarded(batch: TrainBatch) -> TrainBatch:
    """The batch with a reward that the first token of the prompt decides, so that it can be expected."""
    samples = [msgspec.structs.replace(each, reward=float(each.tokens[0] % 2)) for each in batch.samples]
    return msgspec.structs.replace(batch, samples=samples)


def test_a_critic_learns_what_return_to_expect(
    open_engine: Open, make_stage: Make, make_batch: MakeBatch, tiny_model: Path
) -> None:
    engine = open_engine(with_critic(make_stage(), tiny_model, lr=3e-3))
    batch = rewarded(make_batch(1))
    found = [engine.train(msgspec.structs.replace(batch, step=step, stage_step=step)).metrics for step in range(1, 41)]
    rewards = np.mean([sample.reward for sample in batch.samples for _ in range(int(sample.loss_mask.sum()))])
    assert found[0]["critic/values/mean"] == 0.0
    assert found[0]["critic/returns/mean"] == pytest.approx(rewards, abs=1e-5)
    assert found[-1]["critic/vf_loss"] < 0.2 * found[0]["critic/vf_loss"]
    assert found[-1]["critic/values/mean"] == pytest.approx(rewards, abs=0.1)


def test_a_critic_has_a_schedule_of_its_own(
    open_engine: Open, make_stage: Make, make_batch: MakeBatch, tiny_model: Path
) -> None:
    """A quarter of eight steps is warm-up, then a cosine to a tenth; the policy's rate stays what it is."""
    stage = msgspec.structs.replace(make_stage(), total_steps=8)
    own = {"critic_lr_warmup_steps_ratio": 0.25, "critic_lr_scheduler_type": "cosine", "critic_min_lr_ratio": 0.1}
    spec = advantage(stage, "ppo", critic_path=str(tiny_model), engine_args={"critic_lr": 1e-3, **own})
    engine = open_engine(spec)
    batch = rewarded(make_batch(1))
    steps = (1, 2, 5, 8)
    found = [engine.train(msgspec.structs.replace(batch, step=step, stage_step=step)).metrics for step in steps]
    assert [each["critic/lr"] for each in found] == pytest.approx([0.5e-3, 1e-3, 0.55e-3, 1e-4])
    assert len({each["actor/lr"] for each in found}) == 1


def test_a_critics_weights_decay_by_its_own_argument(
    open_engine: Open, make_stage: Make, make_batch: MakeBatch, tiny_model: Path
) -> None:
    """Of two critics that differ in it alone, the second step's losses differ."""
    sums: dict[float, set[str]] = {0.0: set(), 0.5: set()}
    for decay, found in sums.items():
        args = {"critic_lr": 0.1, "critic_weight_decay": decay}
        engine = open_engine(advantage(make_stage(), "ppo", critic_path=str(tiny_model), engine_args=args))
        batch = rewarded(make_batch(1))
        for step in (1, 2):
            result = engine.train(msgspec.structs.replace(batch, step=step, stage_step=step))
        found.add(f"{result.metrics['critic/vf_loss']:.9g}")
    assert sums[0.0] != sums[0.5]


def test_a_critic_without_a_bound_of_its_gradient_learns(
    open_engine: Open, make_stage: Make, make_batch: MakeBatch, tiny_model: Path
) -> None:
    """0 is no bound, as in the policy's `clip_grad`."""
    args = {"critic_lr": 3e-3, "critic_grad_clip": 0.0}
    engine = open_engine(advantage(make_stage(), "ppo", critic_path=str(tiny_model), engine_args=args))
    batch = rewarded(make_batch(1))
    losses = [
        engine.train(msgspec.structs.replace(batch, step=step, stage_step=step)).metrics["critic/vf_loss"]
        for step in range(1, 9)
    ]
    assert losses[-1] < 0.9 * losses[0]


def test_the_policy_waits_for_its_critic(
    open_engine: Open, make_stage: Make, make_batch: MakeBatch, tiny_model: Path
) -> None:
    """Trinity-RFT's rule: the policy is trained from step `critic_warmup` on."""
    engine = open_engine(with_critic(make_stage(), tiny_model, warmup=3))
    sums = [engine.checksum()]
    for step in range(1, 5):
        result = engine.train(rewarded(make_batch(step)))
        assert result.metrics["critic/vf_loss"] > 0
        assert ("actor/pg_loss" in result.metrics) == (step >= 3)
        sums.append(engine.checksum())
    assert sums[0] == sums[1] == sums[2]
    assert len(set(sums)) == 3


def test_the_value_loss_is_the_formulas(tiny_model: Path, open_engine: Open, make_stage: Make) -> None:
    """Half the mean of the worse of two squares, by a loop; and its gradient by differences."""
    arguments = TorchTrainerArgs(critic_clip=0.2, critic_grad_clip=1e9)
    optimizer = arguments.optimizer(8, decay_all=False)
    device = torch.device("cpu")
    model = ValueModel(tiny_model, device, trust_remote_code=False)
    passes = TorchPasses(model=model, device=device, precision=nullcontext, parameters=dict(model.named_parameters()))
    critic = ModelCritic(passes, optimizer, arguments, writers=0)
    torch.manual_seed(0)
    model.head.weight.data.normal_(0, 0.05)
    micro = packed_batch(open_engine(make_stage()))
    old = critic.values([micro])[0] + 0.3 * torch.randn(len(micro.targets))
    returns = torch.randn(len(micro.targets))
    part = Passed(values=old, returns=returns)

    def loop() -> float:
        total = 0.0
        for value, before, wanted in zip(
            critic.values([micro])[0].tolist(), old.tolist(), returns.tolist(), strict=True
        ):
            near = min(max(value, before - 0.2), before + 0.2)
            total += 0.5 * max((value - wanted) ** 2, (near - wanted) ** 2)
        return total / len(micro.targets)

    (figures,) = critic.accumulate([micro], lambda _, values: value_loss(micro, values, part, 0.2))
    assert float(figures["critic/vf_loss"]) == pytest.approx(loop(), abs=1e-5)
    gradient = model.head.weight.grad
    assert gradient is not None
    for place in (0, 7, 31):
        weight = model.head.weight.data
        weight[0, place] += 1e-3
        above = loop()
        weight[0, place] -= 2e-3
        below = loop()
        weight[0, place] += 1e-3
        assert float(gradient[0, place]) == pytest.approx((above - below) / 2e-3, abs=2e-3)


def packed_batch(engine: TorchTrainerEngine) -> Any:
    """One micro-batch of three responses."""
    from rftd.workers.engines.torch.trainer.packing import pack
    from rftd.workers.learning.losses.aggregation import Aggregation

    rng = np.random.default_rng(0)
    samples = [
        TrainSample(
            tokens=rng.integers(7, 120, 10).astype(np.uint32),
            prompt_tokens=4,
            loss_mask=np.array([1, 1, 0, 1, 1, 1], np.uint8),
            logprobs=np.zeros(6, np.float32),
            advantages=np.zeros(6, np.float32),
        )
        for _ in range(3)
    ]
    aggregation = Aggregation("token-mean", None, None)
    (micro,) = pack(samples, budget_tokens=4096, aggregation=aggregation, hidden_size=32, share=False)
    return micro


def test_a_checkpoint_resumes_the_critic_too(
    open_engine: Open, make_stage: Make, make_batch: MakeBatch, tiny_model: Path, tmp_path: Path
) -> None:
    stage = with_critic(make_stage(), tiny_model)
    engine, resumed, fresh = (open_engine(stage) for _ in range(3))
    for step in (1, 2):
        engine.train(rewarded(make_batch(step)))
    engine.save(tmp_path, hf=False)
    resumed.load(tmp_path, stage)
    (tmp_path / "critic" / "model.safetensors").rename(tmp_path / "gone")
    with pytest.raises(DataError, match="cannot be read"):
        fresh.load(tmp_path, stage)
    ours, theirs = (each.train(rewarded(make_batch(3))) for each in (engine, resumed))
    assert ours.metrics == theirs.metrics
    assert engine.checksum() == resumed.checksum()


def test_values_that_are_not_finite_skip_the_step_of_both(
    open_engine: Open, make_stage: Make, make_batch: MakeBatch, tiny_model: Path
) -> None:
    engine = open_engine(with_critic(make_stage(), tiny_model))
    before = engine.checksum()
    assert engine._learner is not None
    critic = engine._learner.critic
    assert critic is not None
    critic.model.model.head.weight.data.fill_(float("nan"))
    result = engine.train(rewarded(make_batch(1)))
    assert result.skipped
    assert engine.checksum() == before


@pytest.mark.parametrize("name", ["on_policy_distill", "jsd"])
def test_a_teacher_is_followed(
    open_engine: Open, make_stage: Make, make_batch: MakeBatch, tmp_path: Path, name: str
) -> None:
    """Tokens that the teacher likes more than the pupil become more likely: their mean advantage rises to its."""
    teacher = make_tiny_model(tmp_path / "teacher", seed=11, hidden_size=32, heads=2)
    engine = open_engine(advantage(make_stage(), name, teacher_path=str(teacher)))
    result = engine.train(make_batch(1))
    assert result.metrics["critic/advantages/max"] > result.metrics["critic/advantages/min"]
    with pytest.raises(ConfigError, match="none is named"):
        open_engine(advantage(make_stage(), name))


def test_a_teacher_of_another_vocabulary_is_refused(open_engine: Open, make_stage: Make, tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="64 tokens") as refused:
        open_engine(advantage(make_stage(), "on_policy_distill", teacher_path=str(tmp_path)))
    assert refused.value.field == "explorer.auxiliary_models"


def test_the_entropy_signals_mean_is_the_formulas(open_engine: Open, make_stage: Make) -> None:
    """Against the whole logits, in float64."""
    from rftd.workers.engines.torch.trainer.forward import hidden_of, signals_of

    engine = open_engine(make_stage())
    model, micro = engine._open_policy.model, packed_batch(engine)
    with torch.no_grad():
        found = signals_of(model, micro, torch.device("cpu"))
        hidden = hidden_of(model.get_decoder(), micro, torch.device("cpu"))
        logits = (hidden @ model.get_output_embeddings().weight.T).double()
        logits = logits * to_device(micro.inverse_temperature, torch.device("cpu"))[:, None]
        logprobs = logits.log_softmax(-1)
        entropies = -(logprobs.exp() * logprobs).sum(-1, keepdim=True)
        wanted = (logprobs.exp() * logprobs.exp() * (entropies + logprobs)).sum(-1)
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=1e-4)
