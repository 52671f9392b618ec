"""Keys of veRL's other engines and older releases, and keys at a default, which ask a person for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Fields = Callable[..., dict[str, Any]]
Outcomes = Callable[..., dict[str, str]]
Refused = Callable[[str], str]
ACTOR = "actor_rollout_ref.actor"
STRATEGY = "trainer.trainer_strategy"


@pytest.mark.parametrize(
    "override",
    [
        f"{ACTOR}.megatron.expert_model_parallel_size=1",
        f"{ACTOR}.megatron.expert_tensor_parallel_size=1",
        "actor_rollout_ref.ref.megatron.expert_model_parallel_size=2",
        f"{ACTOR}.fsdp_config.grad_offload=False",
        "critic.model.fsdp_config.grad_offload=True",
        f"{ACTOR}.veomni.param_offload=True",
        "actor_rollout_ref.ref.torchtitan.use_torch_compile=False",
        "critic.automodel.tp_size=2",
        f"{ACTOR}.optim.muon_nesterov=True",
        "reward_model.micro_batch_size=null",
        "actor_rollout_ref.rollout.swap_space=40",
        f"{ACTOR}.qat.enable=False",
        f"{ACTOR}.fsdp_config.qat.mode=w4a16",
        "actor_rollout_ref.rollout.multi_turn.enable=False",
        "actor_rollout_ref.rollout.multi_turn.format=hermes",
        "actor_rollout_ref.model.mtp.method=mtp",
        "actor_rollout_ref.model.lora.alpha=32",
        "critic.strategy=fsdp",
        "critic.loss_agg_mode=token-mean",
        "trainer.v1.separate_async.parameter_sync_step=4",
        f"{ACTOR}.router_replay.mode=disabled",
        "data.reward_fn_key=data_source",
    ],
)
def test_a_key_that_changes_nothing_is_dropped_and_asks_nobody(outcomes: Outcomes, override: str) -> None:
    assert outcomes(override)[override.partition("=")[0]] == "dropped"


@pytest.mark.parametrize(
    "override",
    [
        f"{ACTOR}.qat.enable=True",
        "actor_rollout_ref.rollout.multi_turn.enable=True",
        "trainer.remove_clip=True",
        "data.max_obs_length=500",
        "+max_turns=2",
    ],
)
def test_a_key_that_changes_something_asks_a_person(outcomes: Outcomes, override: str) -> None:
    assert outcomes(override)[override.partition("=")[0].removeprefix("+")] == "needs a person"


def test_what_a_switch_turns_on_asks_as_well(outcomes: Outcomes) -> None:
    lines = outcomes(f"{ACTOR}.qat.enable=True", f"{ACTOR}.qat.mode=w4a16")
    assert lines[f"{ACTOR}.qat.mode"] == "needs a person"


@pytest.mark.parametrize(
    ("overrides", "strategy"),
    [
        ([f"{ACTOR}.strategy=megatron"], "megatron"),
        ([f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.pipeline_model_parallel_size=1"], "megatron"),
        ([f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.pipeline_model_parallel_size=2"], "fsdp2"),
        ([f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.expert_model_parallel_size=8"], "fsdp2"),
        (["model_engine=veomni"], "fsdp2"),
        ([f"{ACTOR}.strategy=fsdp", "model_engine=dp"], "fsdp"),
        (["model_engine=dp"], "fsdp"),
    ],
)
def test_the_engine_that_trains(fields: Fields, overrides: list[str], strategy: str | None) -> None:
    assert fields(*overrides).get(STRATEGY) == strategy


@pytest.mark.parametrize(
    ("overrides", "schedule", "lowest"),
    [
        ([f"{ACTOR}.optim.lr_decay_style=cosine", f"{ACTOR}.optim.min_lr=1e-7"], "cosine", 0.1),
        ([f"{ACTOR}.optim.lr_decay_style=constant", f"{ACTOR}.optim.min_lr=1e-7"], "constant", None),
        ([f"{ACTOR}.optim.decay_type=cosine", f"{ACTOR}.optim.min_lr_factor=0.2"], "cosine", 0.2),
        (["model_engine=veomni"], "cosine", 0.0),
        (["model_engine=veomni", f"{ACTOR}.optim.lr_scheduler_type=constant"], "constant", None),
        ([], None, None),
    ],
)
def test_schedules_by_the_names_of_every_engine(
    fields: Fields, overrides: list[str], schedule: str | None, lowest: float | None
) -> None:
    tree = fields(f"{ACTOR}.optim.lr=1e-6", *overrides)
    assert tree.get("algorithm.optimizer.lr_scheduler_type") == schedule
    assert tree.get("algorithm.optimizer.min_lr_ratio") == (None if lowest is None else pytest.approx(lowest))


def test_an_engine_whose_default_schedule_is_not_here_is_refused_with_its_name(refused: Refused) -> None:
    run = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d/train.jsonl"
    assert "torchtitan's default linear" in refused(f"{run} model_engine=torchtitan")
