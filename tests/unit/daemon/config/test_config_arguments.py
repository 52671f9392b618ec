"""Arguments that the schema leaves open act or are refused: engines, strategies, and settings of later stages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rftd.daemon.config.loading import Submission
from rftd.workers.devices.host import ANY_HOST

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
CONTROL = ["algorithm.sample_strategy=staleness_control", "synchronizer.sync_style=fully_async"]
BOTH = """
stages:
  - stage_name: one
    mode: both
  - stage_name: two
    mode: both
    SECTION
"""


@pytest.mark.parametrize(
    ("override", "field", "says", "fix"),
    [
        ("explorer.rollout_model.extra_engine_args={thread: 2}", "extra_engine_args.thread", "is 2", "'threads'"),
        ("explorer.rollout_model.extra_engine_args={swap: 4}", "extra_engine_args.swap", "torch engine", "threads"),
        ("trainer.engine_args={divice: cpu}", "trainer.engine_args.divice", "is 'cpu'", "'device'"),
        ("trainer.engine_args={device: gpu}", "trainer.engine_args.device", "is 'gpu'", "auto, cpu, cuda"),
        ("trainer.engine_args={critic_lr: fast}", "trainer.engine_args.critic_lr", "expected `float`, got `str`", ""),
        ("trainer.engine_args={dtype: float8}", "trainer.engine_args.dtype", "is 'float8'", "float32"),
        ("trainer.engine_args={dtype: [a]}", "trainer.engine_args.dtype", "is ['a']", "float32"),
    ],
)
def test_arguments_that_no_engine_takes_are_refused_at_submission(
    errors: Errors, override: str, field: str, says: str, fix: str
) -> None:
    (text,) = errors(overrides=[override])
    assert field in text, text
    assert says in text, text
    assert fix in text, text


@pytest.mark.parametrize(
    ("part", "argument"),
    [
        ("policy_loss_fn=ppo", "delta"),
        ("entropy_loss_fn=default", "entropy_coef"),
        ("entropy_loss_fn=mix", "entropy_coef"),
        ("advantage_fn=clipb", "mu"),
        ("advantage_fn=clipv", "mu"),
        ("advantage_fn=jsd", "kl_coef"),
        ("advantage_fn=on_policy_distill", "kl_coef"),
        ("advantage_fn=gigpo", "omega"),
    ],
)
def test_an_argument_below_its_least_is_refused_at_submission(errors: Errors, part: str, argument: str) -> None:
    name = part.partition("=")[0]
    texts = errors(overrides=[f"algorithm.{part}", f"algorithm.{name}_args={{{argument}: -0.5}}"])
    (text,) = [each for each in texts if f"algorithm.{name}_args.{argument}: is -0.5" in each]
    assert "use 0 or more" in text


@pytest.mark.parametrize("buffer", ["explorer_input.taskset", "trainer_input.experience_buffer"])
def test_a_buffer_counts_no_epochs_of_its_own(load: Load, errors: Errors, buffer: str) -> None:
    """Trinity-RFT fills the field in; written out, it may say what the file says anyway."""
    field = f"buffer.{buffer}.total_epochs"
    assert load(overrides=[f"{field}=1"]).spec.stages == load().spec.stages
    (text,) = errors(overrides=[f"{field}=3"])
    assert f"{field}: is 3" in text
    assert "write buffer.total_epochs" in text


@pytest.mark.parametrize(
    ("arguments", "field", "says", "fix"),
    [
        ("{vllm: {model: /x}}", "vllm.model", "has its own field", "write model.model_path"),
        ("{vllm: {speculative_config: {}}}", "vllm.speculative_config", "cannot be set", "leave it out"),
        ("{vllm: {spec_method: ngram}}", "vllm.spec_method", "cannot be set: log-probabilities", "leave it out"),
        (
            "{vllm: {watermark_config: {}}}",
            "vllm.watermark_config",
            "cannot be set: log-probabilities",
            "leave it out",
        ),
        (
            "{vllm: {otlp_traces_endpoint: h}}",
            "vllm.otlp_traces_endpoint",
            "nothing leaves the machine",
            "leave it out",
        ),
        (
            "{vllm: {max_num_seq: 4}}",
            "vllm.max_num_seq",
            "not an argument of vLLM",
            "write explorer.rollout_model.max_num_seqs",
        ),
        ("{vllm: {blok_size: 4}}", "vllm.blok_size", "not an argument of vLLM", "did you mean 'block_size'?"),
        ("{vllm: {block_size: big}}", "vllm.block_size", "expected `int | null`, got `str`", "correct it"),
        ("{vllm: {moe_backend: tritn}}", "vllm.moe_backend", "'tritn'", "correct it"),
        ("{vllm: {3: 4}}", "vllm.3", "not an argument of vLLM", "leave it out"),
        ("{vllm: all}", "vllm", "is 'all'", ""),
        ("{hf_overrides: {a: 1}}", "hf_overrides", "an argument of vLLM's own", "{vllm: {hf_overrides: ...}}"),
        ("{revision: v2}", "revision", "cannot be set: the model and its tokenizer are in a local", "leave it out"),
        ("{dtype: float16}", "dtype", "has its own field", "write explorer.rollout_model.dtype"),
        ("{hang_timeout_s: -1}", "hang_timeout_s", "is -1", "300"),
        ("{vlm: {seed: 1}}", "vlm", "takes no argument 'vlm'", "did you mean 'vllm'?"),
    ],
)
def test_what_vllm_would_be_opened_with_in_vain_is_refused_at_submission(
    errors: Errors, arguments: str, field: str, says: str, fix: str
) -> None:
    vllm = ["explorer.rollout_model.engine_type=vllm", f"explorer.rollout_model.extra_engine_args={arguments}"]
    (text,) = errors(overrides=vllm, host=ANY_HOST)
    assert f"explorer.rollout_model.extra_engine_args.{field}:" in text, text
    assert says in text, text
    assert fix in text, text


def test_arguments_of_vllms_own_that_break_no_promise_reach_it_without_a_vllm_here(load: Load) -> None:
    own = {"hf_overrides": {"rope_theta": 1}, "block_size": 32, "cpu_offload_gb": 4, "attention_backend": "FLASH_ATTN"}
    arguments = f"explorer.rollout_model.extra_engine_args={{vllm: {json.dumps(own)}}}"
    spec = load(overrides=["explorer.rollout_model.engine_type=vllm", arguments], host=ANY_HOST).spec
    assert spec.stages[0].rollout.engine_args == {"vllm": own}


def test_a_wrong_argument_of_an_engine_is_found_in_its_line(errors: Errors, small: str) -> None:
    (text,) = errors(small + "trainer:\n  engine_args:\n    prefix_sharin: never\n")
    assert "exp.yaml:20:5" in text, text
    assert "did you mean 'prefix_sharing'?" in text, text


def test_arguments_of_engines_reach_the_specification(load: Load) -> None:
    trainer = load(overrides=["trainer.engine_args={device: cpu, critic_lr: 1, threads: 2}"]).spec.stages[0].trainer
    assert (trainer.engine_args, trainer.threads) == ({"device": "cpu", "critic_lr": 1}, 2)
    fake = ["explorer.rollout_model.engine_type=fake", "explorer.rollout_model.extra_engine_args={latency_s: 0.5}"]
    assert load(overrides=fake).spec.stages[0].rollout.engine_args == {"latency_s": 0.5}
    auto = load(overrides=["explorer.rollout_model.dtype=auto"]).spec.stages[0].rollout
    assert auto.dtype == "float32"


@pytest.mark.parametrize(
    ("overrides", "field", "says", "fix"),
    [
        (
            [*CONTROL, "algorithm.sample_strategy_args={max_stalenes: 2}"],
            "algorithm.sample_strategy_args.max_stalenes",
            "is 2, and sample_strategy staleness_control takes no argument 'max_stalenes'",
            "did you mean 'max_staleness'?",
        ),
        (
            ["algorithm.sample_strategy_args={max_staleness: 2}"],
            "algorithm.sample_strategy_args.max_staleness",
            "sample_strategy default takes no argument",
            "leave it out",
        ),
        (
            [*CONTROL, "algorithm.sample_strategy_args={max_staleness: many}"],
            "algorithm.sample_strategy_args.max_staleness",
            "is 'many'",
            "",
        ),
        (
            [*CONTROL, "algorithm.sample_strategy_args={max_staleness: 4}", "policy={kind: areal, max_staleness: 6}"],
            "algorithm.sample_strategy_args.max_staleness",
            "is 4, but policy.max_staleness is 6",
            "keep one of them",
        ),
        (
            ["algorithm.sample_strategy=mix", "algorithm.sample_strategy_args={sft_dataset_name: 3}"],
            "algorithm.sample_strategy_args.sft_dataset_name",
            "is 3",
            "its default, 'sft_dataset'",
        ),
    ],
)
def test_arguments_of_a_strategy_act_or_are_refused(
    errors: Errors, overrides: list[str], field: str, says: str, fix: str
) -> None:
    (text,) = errors(overrides=overrides)
    assert field in text, text
    assert says in text, text
    assert fix in text, text


@pytest.mark.parametrize(
    ("section", "overrides", "field", "says"),
    [
        ("explorer: {rollout_model: {engine_type: fake}}", [], "engine_type", "is 'fake' here and 'torch' in stage"),
        ("explorer: {rollout_model: {dtype: bfloat16}}", [], "dtype", "is 'bfloat16' here and 'float32'"),
        ("explorer: {rollout_model: {extra_engine_args: {threads: 2}}}", [], "threads", "is 2 here and 1"),
        (
            "explorer: {rollout_model: {extra_engine_args: {latency_s: 2}}}",
            ["explorer.rollout_model.engine_type=fake"],
            "extra_engine_args.latency_s",
            "is 2 here and 0.0",
        ),
        ("trainer: {trainer_type: fake}", [], "trainer_type", "is 'fake' here and 'torch' in stage 'one'"),
        ("trainer: {engine_args: {device: cpu}}", [], "engine_args.device", "is 'cpu' here and 'auto'"),
        ("trainer: {engine_args: {lora_publish: adapter}}", [], "lora_publish", "is 'adapter' here and 'merged'"),
    ],
)
def test_a_later_stage_cannot_have_an_engine_of_its_own(
    errors: Errors, small: str, section: str, overrides: list[str], field: str, says: str
) -> None:
    (text,) = errors(small + BOTH.replace("SECTION", section), overrides)
    assert "stages[1]." in text, text
    assert field in text, text
    assert says in text, text
    assert "one engine serves all stages" in text, text


def test_a_later_stage_may_have_its_own_places_threads_and_critic(load: Load, small: str) -> None:
    own = "{explorer: {runner_per_model: 3}, trainer: {engine_args: {threads: 2, prefix_sharing: never}}}"
    text = small + BOTH.replace("mode: both\n    SECTION", own[1:-1].replace(", trainer", "\n    trainer"))
    one, two = load(text).spec.stages
    assert (one.rollout.concurrency, two.rollout.concurrency) == (8, 3)
    assert (one.trainer.threads, two.trainer.threads) == (1, 2)
    assert two.trainer.engine_args == {"prefix_sharing": "never"}


def test_a_stage_that_only_learns_has_no_say_in_the_engine_of_those_after_it(load: Load, small: str) -> None:
    rows = "buffer: {train_batch_size: 3, trainer_input: {experience_buffer: {path: /rows.jsonl}}}"
    first = "mode: train\n    algorithm: {algorithm_type: sft}\n    " + rows
    section = "explorer: {rollout_model: {dtype: bfloat16}}"
    text = small + BOTH.replace("mode: both", first, 1).replace("SECTION", section)
    assert load(text).spec.stages[1].rollout.dtype == "bfloat16"


def test_a_stage_with_another_strategy_or_loss_inherits_no_arguments_of_the_first(load: Load, small: str) -> None:
    section = "algorithm: {sample_strategy: default, policy_loss_fn: gspo}"
    given = [*CONTROL, "algorithm.sample_strategy_args={max_staleness: 3}", "algorithm.policy_loss_fn=ppo"]
    given += ["algorithm.policy_loss_fn_args={clip_range: 0.1}"]
    one, two = load(small + BOTH.replace("SECTION", section), given).spec.stages
    assert (one.policy.max_staleness_versions, two.algorithm.sample_strategy_args) == (3, {})
    assert one.algorithm.policy_loss_args["clip_range"] == 0.1
    assert "clip_range" not in two.algorithm.policy_loss_args


def test_a_seed_of_the_rollout_engine_alone_is_said_to_have_no_effect(load: Load) -> None:
    spec = load(overrides=["explorer.rollout_model.seed=5", "seed=7"]).spec
    (text,) = [text for text in spec.warnings if "rollout_model.seed" in text]
    assert "the experiment's seed" in text
    assert not any("rollout_model.seed" in text for text in load(overrides=["seed=7"]).spec.warnings)


SCORED = "buffer.explorer_input.taskset.default_reward_fn_type=reward_model"


@pytest.mark.parametrize(
    ("overrides", "field", "says", "fix"),
    [
        ([SCORED, "A={path: /rm, batch_sise: 4}"], "A.batch_sise", "takes no argument 'batch_sise'", "'batch_size'"),
        ([SCORED, "A={path: /rm, batch_size: 0}"], "A.batch_size", "is 0: expected `int` >= 1", "leave it out"),
        ([SCORED, "A={path: /rm, device: gpu}"], "A.device", "is 'gpu'", "leave it out"),
        ([SCORED, "A={batch_size: 4}"], "A.path", "is not given", "reward reward_model needs it"),
        (["A={path: /rm}"], "A.path", "reward math_reward takes no argument 'path'", "leave it out"),
    ],
)
def test_arguments_that_a_reward_does_not_take_are_refused_at_submission(
    errors: Errors, overrides: list[str], field: str, says: str, fix: str
) -> None:
    place = "buffer.explorer_input.taskset.reward_fn_args"
    (text,) = errors(overrides=[each.replace("A=", f"{place}=") for each in overrides])
    assert field.replace("A.", f"{place}.") in text, text
    assert says in text, text
    assert fix in text, text


TASKSET = "buffer.explorer_input.taskset"
DIFFICULTY = "selector_type: difficulty_based, feature_keys: [weak, strong]"
REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
BOXED = f"{TASKSET}.default_workflow_type=math_boxed_workflow"
PROGRAM = f"{TASKSET}.default_workflow_type=agent_program_workflow"


@pytest.mark.parametrize(
    ("overrides", "field", "says", "fix"),
    [
        ([BOXED, "A.with_thnk=true"], "A.with_thnk", "takes no argument 'with_thnk'", "did you mean 'with_think'?"),
        ([BOXED, "A.with_think=1"], "A.with_think", "is 1: expected `bool`, got `int`", "leave it out"),
        ([BOXED, "A.format_score_coef=no"], "A.format_score_coef", "expected `float`, got `bool`", "leave it out"),
        ([BOXED, "A.use_base=1"], "A.use_base", "expected `bool`, got `int`", "leave it out"),
        ([PROGRAM, "A={agent: a, sampling: taskst}"], "A.sampling", "is 'taskst'", "did you mean 'taskset'?"),
        ([PROGRAM, "A={agent: a, max_calls: 0}"], "A.max_calls", "expected `int` >= 1", "leave it out"),
        ([PROGRAM, "A={max_calls: 1}"], "A.agent", "is not given", "agent_program_workflow needs it"),
        (["A.with_think=true"], "A.with_think", "workflow math_workflow takes no argument", "leave it out"),
    ],
)
def test_arguments_that_a_workflow_does_not_take_are_refused_at_submission(
    errors: Errors, overrides: list[str], field: str, says: str, fix: str
) -> None:
    (text,) = errors(overrides=[each.replace("A", f"{TASKSET}.workflow_args", each[:1] == "A") for each in overrides])
    assert field.replace("A.", f"{TASKSET}.workflow_args.") in text, text
    assert says in text, text
    assert fix in text, text


def test_an_argument_of_a_workflow_is_found_in_its_line(errors: Errors, small: str) -> None:
    (text,) = errors(small + "      workflow_args:\n        with_think: true\n")
    assert "exp.yaml:19:9" in text, text


def test_upstreams_boxed_workflow_hands_its_arguments_to_its_reward(load: Load) -> None:
    given = [BOXED, f"{TASKSET}.workflow_args={{with_think: true, format_score_coef: 0.2, use_base: false}}"]
    taskset = load(overrides=given).spec.stages[0].taskset
    assert taskset is not None
    assert taskset.workflow_args == {"with_think": True, "use_base": False}
    assert taskset.reward_args == {"with_think": True, "format_score_coef": 0.2}
    spec = load(overrides=[*given, f"{TASKSET}.default_reward_fn_type=math_reward"]).spec
    assert spec.stages[0].taskset is not None
    assert spec.stages[0].taskset.reward_args == {}
    assert any("format_score_coef has no effect: math_reward scores" in text for text in spec.warnings)


@pytest.mark.parametrize(
    ("overrides", "field", "says"),
    [
        ([f"{REPLAY}={{enable: true, priority_fn_args: {{decai: 1}}}}"], "priority_fn_args.decai", "'decay'"),
        ([f"{REPLAY}={{enable: true, priority_fn_args: {{decay: -1}}}}"], "priority_fn_args.decay", ">= 0"),
        ([f"{REPLAY}.priority_fn_args={{decay: fast}}"], "priority_fn_args.decay", "expected `float`"),
        ([f"{REPLAY}.priority_fn=linear_decai"], "priority_fn", "'linear_decay'"),
        ([f"{TASKSET}.data_selector={{{DIFFICULTY}, kwargs: {{lam: 1}}}}"], "data_selector.kwargs.lam", "'lamb'"),
        ([f"{TASKSET}.data_selector={{{DIFFICULTY}, kwargs: {{tau: -1}}}}"], "data_selector.kwargs.tau", ">= 0"),
        (["algorithm.advantage_fn_args={epsilon: tiny}"], "advantage_fn_args.epsilon", "expected `float`"),
        (["algorithm.advantage_fn_args={std_cal_level: bach}"], "advantage_fn_args.std_cal_level", "is 'bach'"),
        (["algorithm.policy_loss_fn_args={clip_range: -1}"], "policy_loss_fn_args.clip_range", "use ranges of 0"),
        (["algorithm.kl_loss_fn_args={kl_coef: -1}"], "kl_loss_fn_args.kl_coef", "is -1"),
        (["algorithm.kl_loss_fn=none", "algorithm.kl_loss_fn_args={kl_coeff: 1}"], "kl_coeff", "'kl_coef'"),
        (["algorithm.sample_strategy=defalt"], "sample_strategy", "did you mean 'default'?"),
    ],
)
def test_arguments_of_functions_are_refused_at_their_own_field(
    errors: Errors, overrides: list[str], field: str, says: str
) -> None:
    (text,) = errors(overrides=overrides)
    assert f"{field}:" in text, text
    assert says in text, text


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["algorithm.kl_loss_fn=none", "algorithm.kl_loss_fn_args={kl_coef: 1}"], "kl_coef has no effect with KL loss"),
        ([f"{REPLAY}.priority_fn=tag"], "replay_buffer.priority_fn has no effect: replay_buffer.enable is false"),
        ([f"{TASKSET}.data_selector.kwargs={{tau: 1}}"], "data_selector.kwargs"),
    ],
)
def test_arguments_that_mean_nothing_here_are_spoken_of(load: Load, overrides: list[str], says: str) -> None:
    assert any(says in text for text in load(overrides=overrides).spec.warnings)


def test_a_rewards_path_is_whole_wherever_it_is_opened(load: Load, tmp_path: Path) -> None:
    args = load(overrides=[SCORED, "buffer.explorer_input.taskset.reward_fn_args={path: ./rm}"]).spec.stages[0].taskset
    assert args is not None
    assert args.reward_args == {"path": str(tmp_path / "rm")}


def test_a_stop_text_without_text_is_refused(errors: Errors) -> None:
    (text,) = errors(overrides=["buffer.explorer_input.taskset.rollout_args.stop=['']"])
    assert "rollout_args.stop[0]" in text


def test_an_argument_of_another_loss_is_named_as_that_and_not_as_a_misspelling(errors: Errors) -> None:
    (text,) = errors(overrides=["algorithm.policy_loss_fn_args={sft_loss_agg_mode: token-mean}"])
    assert "policy loss ppo takes no argument 'sft_loss_agg_mode'" in text
    assert "fix: leave it out: it is an argument of mix" in text
    (misspelt,) = errors(overrides=["algorithm.policy_loss_fn_args={clip_rang: 0.1}"])
    assert "did you mean 'clip_range'?" in misspelt


def test_arguments_of_a_penalty_are_not_spoken_of_as_a_losss(load: Load, errors: Errors) -> None:
    said = load(overrides=["algorithm.kl_penalty_fn=none", "algorithm.kl_penalty_fn_args={kl_coef: 0.5}"]).spec.warnings
    assert "algorithm.kl_penalty_fn_args.kl_coef has no effect with KL penalty none" in said
    (text,) = errors(overrides=["algorithm.kl_penalty_fn=k1", "algorithm.kl_penalty_fn_args={kl_coeff: 0.5}"])
    assert "KL penalty k1 takes no argument 'kl_coeff'" in text


def test_what_is_required_and_missing_is_named_in_the_advice(errors: Errors) -> None:
    (text,) = errors(overrides=["model.lora_configs=[{lora_rank: 8}]"])
    assert "model.lora_configs[0].name: is required" in text
    assert "fix: write model.lora_configs[0].name" in text
