"""Arguments of losses and advantages by upstream's names, and misspelt ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission
from rftd.workers.learning.losses.objective import Objective

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
ARGS = "algorithm.policy_loss_fn_args="
MIX = [
    "algorithm.algorithm_type=mix",
    "buffer.train_batch_size=16",
    "buffer.trainer_input.auxiliary_buffers={sft_dataset: {path: /expert.jsonl}}",
]


def test_upstreams_names_reach_the_objective(load: Load) -> None:
    masked = load(overrides=[ARGS + "{enable_sequence_masking: true, delta_sequence_masking: 0.3}"]).spec.stages[0]
    assert masked.algorithm.policy_loss_args["delta"] == 0.3
    assert "delta_sequence_masking" not in masked.algorithm.policy_loss_args
    for name in ("ppo", "gspo", "sapo", "cispo"):
        both = [f"algorithm.policy_loss_fn={name}", ARGS + "{loss_agg_mode: seq-mean-token-sum}"]
        found = Objective.of(load(overrides=both).spec.stages[0].algorithm)
        assert found.aggregation.mode == "seq-mean-token-sum", name
    modes = ARGS + "{sft_loss_agg_mode: seq-mean-token-mean, grpo_loss_agg_mode: seq-mean-token-sum}"
    mixed = Objective.of(load(overrides=[*MIX, modes]).spec.stages[0].algorithm)
    assert (mixed.aggregation.mode, mixed.aggregation.expert_mode) == ("seq-mean-token-sum", "seq-mean-token-mean")


def test_upstreams_keys_of_gigpo_are_those_of_a_result(load: Load, errors: Errors) -> None:
    gigpo = "algorithm.algorithm_type=gigpo"
    keys = "algorithm.advantage_fn_args={step_reward_key: step_reward, env_state_hash_key: env_state_hash}"
    assert load(overrides=[gigpo, keys]).spec.stages[0].algorithm.advantage == "gigpo"
    (text,) = errors(overrides=[gigpo, "algorithm.advantage_fn_args={step_reward_key: gain}"])
    assert "is 'gain'" in text
    assert "the field 'step_reward'" in text


def test_two_names_of_one_thing_may_agree(load: Load) -> None:
    given = [ARGS + "{delta: 0.2, delta_sequence_masking: 0.2, loss_agg_mode: seq-mean-token-mean}"]
    stage = load(overrides=[*given, "algorithm.loss_agg_mode=seq-mean-token-mean"]).spec.stages[0]
    assert (stage.algorithm.policy_loss_args["delta"], stage.algorithm.loss_agg_mode) == (0.2, "seq-mean-token-mean")


@pytest.mark.parametrize(
    ("overrides", "field", "says", "fix"),
    [
        (
            [ARGS + "{delta: 0.1, delta_sequence_masking: 0.2}"],
            "delta_sequence_masking",
            "is 0.2, but delta (the same setting) is 0.1",
            "keep delta",
        ),
        (
            [ARGS + "{loss_agg_mode: token-mean}", "algorithm.loss_agg_mode=seq-mean-token-sum"],
            "policy_loss_fn_args.loss_agg_mode",
            "is token-mean, but algorithm.loss_agg_mode (the same setting) is seq-mean-token-sum",
            "keep one",
        ),
        (
            [*MIX, ARGS + "{grpo_loss_agg_mode: token-mean, loss_agg_mode: seq-mean-token-sum}"],
            "grpo_loss_agg_mode",
            "is token-mean",
            "keep one",
        ),
        (
            [*MIX, ARGS + "{sft_loss_agg_mode: token-mean, use_token_level_loss_in_sft: false}"],
            "policy_loss_fn_args",
            "asks for seq-mean-token-mean",
            "keep one",
        ),
        ([*MIX, ARGS + "{sft_loss_agg_mode: token-men}"], "policy_loss_fn_args", "'token-men'", "'token-mean'"),
        ([ARGS + "{loss_agg_mode: token-men}"], "policy_loss_fn_args.loss_agg_mode", "'token-men'", "'token-mean'"),
        (
            [ARGS + "{clip_rnge: 0.1}"],
            "policy_loss_fn_args.clip_rnge",
            "is 0.1, and policy loss ppo takes no argument 'clip_rnge'",
            "did you mean 'clip_range'?",
        ),
        (
            [ARGS + "{delta_sequence_maskin: 1}"],
            "policy_loss_fn_args.delta_sequence_maskin",
            "takes no argument",
            "'delta_sequence_masking'",
        ),
        (
            ["algorithm.kl_loss_fn=k2", "algorithm.kl_loss_fn_args={kl_coeff: 0.1}"],
            "kl_loss_fn_args.kl_coeff",
            "takes no argument",
            "did you mean 'kl_coef'?",
        ),
        (
            ["algorithm.advantage_fn_args={epsilom: 0.1}"],
            "advantage_fn_args.epsilom",
            "takes no argument",
            "did you mean 'epsilon'?",
        ),
    ],
)
def test_what_contradicts_or_is_misspelt_is_refused_before_it_is_queued(
    errors: Errors, overrides: list[str], field: str, says: str, fix: str
) -> None:
    (text,) = errors(overrides=overrides)
    assert field in text, text
    assert says in text, text
    assert fix in text, text


def test_a_switch_of_the_likelihood_and_a_mode_must_agree(errors: Errors, load: Load) -> None:
    rows = ["mode=train", "algorithm.algorithm_type=sft", "buffer.train_batch_size=4"]
    rows += ["buffer.trainer_input.experience_buffer.path=/rows.jsonl", "algorithm.repeat_times=null"]
    switch = ARGS + "{use_token_level_loss: false}"
    assert load(overrides=[*rows, switch]).spec.stages[0].algorithm.loss_agg_mode == "seq-mean-token-mean"
    (text,) = errors(overrides=[*rows, switch, "algorithm.loss_agg_mode=token-mean"])
    assert "use_token_level_loss" in text
    assert "asks for seq-mean-token-mean" in text
