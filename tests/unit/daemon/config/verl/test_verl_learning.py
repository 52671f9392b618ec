"""Parts of an algorithm in veRL's newer and older words: estimators, penalties, groups and lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.config.loading import load_text
from rftd.daemon.config.verl.importing import ImportedExperiment
from rftd.workers.devices.host import ANY_HOST

Fields = Callable[..., dict[str, Any]]
Command = Callable[..., ImportedExperiment]
Outcomes = Callable[..., dict[str, str]]
ACTOR = "actor_rollout_ref.actor"
KL = f"{ACTOR}.use_kl_loss=True"
ADVANTAGE = "algorithm.advantage_fn_args"
LOSS = "algorithm.policy_loss_fn"
EVALS = "buffer.explorer_input.eval_tasksets[0]"
CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize(
    ("overrides", "field", "value"),
    [
        ([KL, f"{ACTOR}.kl_loss_type=k3+"], "algorithm.kl_loss_fn", "k2"),
        ([KL, f"{ACTOR}.kl_loss_type=low_var_kl+"], "algorithm.kl_loss_fn", "k2"),
        ([KL, f"{ACTOR}.kl_loss_type=k3"], "algorithm.kl_loss_fn", "k3"),
        (["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=k3+"], "algorithm.kl_penalty_fn", "k3"),
        (["algorithm.filter_groups.enable=True"], f"{ADVANTAGE}.std_threshold", 0.0),
        (["algorithm.filter_groups.enable=False"], f"{ADVANTAGE}.std_threshold", None),
        ([f"{ACTOR}.use_token_level_loss=True"], "algorithm.loss_agg_mode", "token-mean"),
        ([f"{ACTOR}.use_token_level_loss=False"], "algorithm.loss_agg_mode", "seq-mean-token-mean"),
        ([f"{ACTOR}.tis_imp_ratio_cap=2"], f"{CORRECTION}.rollout_is_threshold", 2),
        ([f"{ACTOR}.policy_loss.loss_mode=dppo_tv", f"{ACTOR}.clip_ratio_low=0.1"], f"{LOSS}_args.dppo_mask_low", 0.1),
        (["actor_rollout_ref.rollout.n_agent=3"], "algorithm.repeat_times", 12),
        (
            [f"{CORRECTION}.rollout_rs=geometric", f"{CORRECTION}.rollout_rs_threshold=1.01"],
            f"{CORRECTION}.rollout_rs",
            "seq_mean_k1",
        ),
        (["algorithm.mask_truncated_samples=True"], f"{ADVANTAGE}.mask_truncated", True),
        (["data.train_batch_size=128"], "buffer.batch_size", 128),
        (["data.train_batch_size=128"], "synchronizer.sync_interval", 1),
        (["data.train_batch_size=128"], "buffer.train_batch_size", 512),
        (
            ["data.val_files=d/test.jsonl", "actor_rollout_ref.rollout.val_temperature=0.6"],
            f"{EVALS}.rollout_args.temperature",
            0.6,
        ),
        (["data.val_files=d/test.jsonl", "actor_rollout_ref.rollout.n_val=16"], f"{EVALS}.repeat_times", 16),
        (["trainer.remove_previous_ckpt=True"], "trainer.max_checkpoints_to_keep", 1),
    ],
)
def test_a_key_has_its_field_and_the_check_takes_it(
    fields: Fields, command: Command, overrides: list[str], field: str, value: object
) -> None:
    given = ("actor_rollout_ref.rollout.n=4", *overrides)
    assert fields(*given).get(field) == value
    load_text(command(*given).text, "o.yaml", environ={"HOME": "/h"}, cwd=Path("/w"), host=ANY_HOST)


@pytest.mark.parametrize(
    ("section", "longest"),
    [
        ("reward_model.overlong_buffer", "reward_model.overlong_buffer.max_resp_len"),
        ("reward_model.reward_kwargs.overlong_buffer_cfg", "reward_model.reward_kwargs.max_resp_len"),
        ("reward.reward_kwargs.overlong_buffer_cfg", "reward.reward_kwargs.max_resp_len"),
    ],
)
def test_the_penalty_for_length_is_the_advantages(
    fields: Fields, outcomes: Outcomes, section: str, longest: str
) -> None:
    given = [f"+{section}.enable=True", f"+{section}.len=100", f"+{section}.penalty_factor=0.5", f"+{longest}=900"]
    manager = "reward_model.reward_manager=dapo"
    tree = fields(*given, manager)
    arguments = {name: tree[f"{ADVANTAGE}.{name}"] for name in ("overlong_buffer", "overlong_penalty")}
    assert arguments == {"overlong_buffer": 100, "overlong_penalty": 0.5}
    assert tree[f"{ADVANTAGE}.max_response_tokens"] == 900
    assert set(outcomes(*given, manager).values()) <= {"mapped", "dropped", "veRL's default", "needs a person"}
    assert outcomes(*given, manager)["reward_model.reward_manager"] == "dropped"


def test_without_a_penalty_for_length_its_numbers_change_nothing(fields: Fields, outcomes: Outcomes) -> None:
    section = "reward_model.overlong_buffer"
    given = (f"{section}.enable=False", f"{section}.len=100", f"{section}.penalty_factor=1.0")
    assert not any("overlong" in path for path in fields(*given))
    assert {outcomes(*given)[name.partition("=")[0]] for name in given} == {"dropped"}


def test_an_empty_buffer_penalises_nothing(fields: Fields) -> None:
    section = "reward_model.overlong_buffer"
    assert not any("overlong" in path for path in fields(f"{section}.enable=True", f"{section}.len=0"))


def test_an_estimator_without_such_a_penalty_leaves_a_gap(outcomes: Outcomes, command: Command) -> None:
    section = "reward_model.overlong_buffer"
    given = ("algorithm.adv_estimator=gae", f"{section}.enable=True", f"{section}.len=100")
    assert outcomes(*given)[f"{section}.len"] == "needs a person"
    assert "default_reward_fn_type: ???" in command(*given).text


def test_the_parts_of_a_reward_have_their_weights(fields: Fields) -> None:
    estimator = "algorithm.adv_estimator=gdpo"
    keys = "algorithm.gdpo_reward_keys=[format,right]"
    tree = fields(estimator, keys, "algorithm.gdpo_reward_weights=[0.5,2]")
    assert tree["algorithm.advantage_fn"] == "gdpo"
    assert (tree[f"{ADVANTAGE}.weights.format"], tree[f"{ADVANTAGE}.weights.right"]) == (0.5, 2)
    assert fields(estimator, keys)[f"{ADVANTAGE}.weights.right"] == 1.0


def test_pass_at_k_of_verl_is_the_lead_of_the_best(fields: Fields) -> None:
    tree = fields("algorithm.adv_estimator=grpo_passk", "algorithm.norm_adv_by_std_in_grpo=False")
    assert (tree["algorithm.algorithm_type"], tree["algorithm.advantage_fn"]) == ("grpo", "grpo_passk")
    assert tree[f"{ADVANTAGE}.std_cal_level"] == "none"


@pytest.mark.parametrize("estimator", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_the_baseline_of_each_token_is_taken(fields: Fields, estimator: str) -> None:
    tree = fields(f"algorithm.adv_estimator={estimator}", "actor_rollout_ref.rollout.n=4")
    assert (tree["algorithm.algorithm_type"], tree["algorithm.advantage_fn"]) == ("grpo", "optimal_token_baseline")


def test_nothing_untrue_is_said_of_the_second_clip(command: Command) -> None:
    imported = command("actor_rollout_ref.rollout.n=4")
    assert not any("clip_ratio_c" in str(line) for line in imported.lines)
    loaded = load_text(imported.text, "o.yaml", environ={"HOME": "/h"}, cwd=Path("/w"), host=ANY_HOST)
    (stage,) = loaded.spec.stages
    assert stage.algorithm.policy_loss_args.get("clip_ratio_c", 3.0) == 3.0


def test_the_report_says_where_numbers_of_batches_were_multiplied(command: Command) -> None:
    (line,) = [line for line in command("trainer.save_freq=5").lines if line.key.startswith("trainer.save_freq")]
    assert line.text == "-> trainer.save_interval (4 steps here are one of veRL's)"


@pytest.mark.parametrize(
    ("overrides", "gap"),
    [
        (["data.max_obs_length=500"], "default_workflow_type: ???"),
        (["+max_turns=2"], "default_workflow_type: ???"),
        (["trainer.remove_clip=True"], "policy_loss_fn: ???"),
        (["algorithm.adv_estimator=gae", "algorithm.filter_groups.enable=True"], "advantage_fn: ???"),
        (["reward_model.reward_manager=batch"], "default_reward_fn_type: ???"),
        ([f"{CORRECTION}.rollout_rs_threshold_lower=0.5"], "rollout_rs_threshold: ???"),
    ],
)
def test_what_changes_the_learning_and_has_no_field_is_a_gap(command: Command, overrides: list[str], gap: str) -> None:
    assert gap in command("actor_rollout_ref.rollout.n=4", *overrides).text
