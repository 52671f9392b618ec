"""Derived values: lengths, batches, steps, schedules, engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.config.loading import Submission
from rftd.streams.spec.schedule import explorer_interval, trainer_interval
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.split_submission import difference

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


def _lengths(*pairs: tuple[str, int | None]) -> list[str]:
    return [f"model.{name}={'null' if value is None else value}" for name, value in pairs]


LENGTHS = [
    # model, prompt, response, shortest -> the same, derived
    ((2048, 1000, 1000, 0), (2048, 1000, 1000, 0)),
    ((None, 512, 512, 0), (1024, 512, 512, 0)),
    ((2048, None, None, 0), (2048, 1024, 1024, 0)),
    ((2049, None, None, 0), (2049, 1024, 1025, 0)),
    ((2048, 500, None, 0), (2048, 500, 1548, 0)),
    ((2048, None, 1024, 0), (2048, 1024, 1024, 0)),
    ((2048, None, 4096, 0), (2048, 1, 2047, 0)),
    ((2048, 4096, None, 0), (2048, 2047, 1, 0)),
    ((2048, None, 2048, 0), (2048, 1, 2047, 0)),
    ((2048, 1000, 1000, 1000), (2048, 1000, 1000, 999)),
    ((2048, 1000, 1000, 5), (2048, 1000, 1000, 5)),
]


@pytest.mark.parametrize(("given", "derived"), LENGTHS)
def test_lengths_follow_the_guides_table(load: Load, given: tuple[Any, ...], derived: tuple[int, ...]) -> None:
    names = ("max_model_len", "max_prompt_tokens", "max_response_tokens", "min_response_tokens")
    model = load(overrides=_lengths(*zip(names, given, strict=True))).spec.stages[0].model
    assert (model.max_model_len, model.max_prompt_tokens, model.max_response_tokens, model.min_response_tokens) == (
        derived
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((2000, 1001, 1000), "less than max_prompt_tokens + max_response_tokens = 1001 + 1000"),
        ((None, 512, None), "cannot be derived"),
        ((None, None, None), "cannot be derived"),
        ((1, None, None), "at least 2"),
    ],
)
def test_lengths_that_contradict_are_refused(errors: Errors, given: tuple[Any, ...], words: str) -> None:
    names = ("max_model_len", "max_prompt_tokens", "max_response_tokens")
    (text,) = errors(overrides=_lengths(*zip(names, given, strict=True)))
    assert words in text
    assert "model.max_model_len" in text


def test_a_training_batch_defaults_to_every_answer_of_the_step(load: Load) -> None:
    assert load().spec.stages[0].train_batch_size == 8
    assert load(overrides=["buffer.train_batch_size=6"]).spec.stages[0].train_batch_size == 6


def test_steps_win_over_epochs(load: Load) -> None:
    stage = load(overrides=["buffer.total_epochs=3"]).spec.stages[0]
    assert (stage.total_steps, stage.total_epochs) == (5, 0)
    stage = load(overrides=["buffer.total_epochs=3", "buffer.total_steps=null"]).spec.stages[0]
    assert (stage.total_steps, stage.total_epochs) == (0, 3)
    stage = load(overrides=["trainer.total_steps=9", "buffer.total_steps=null"]).spec.stages[0]
    assert stage.total_steps == 9


def test_an_algorithm_brings_its_own_repeat_times(load: Load, errors: Errors) -> None:
    assert load(overrides=["algorithm.repeat_times=null"]).spec.stages[0].algorithm.repeat_times == 8
    (text,) = errors(overrides=["algorithm.repeat_times=1"])
    assert "every advantage is zero" in text


def test_arguments_are_laid_over_the_functions_defaults(load: Load, errors: Errors) -> None:
    algorithm = load(overrides=["algorithm.policy_loss_fn_args={clip_ratio_c: 2.5}"]).spec.stages[0].algorithm
    assert algorithm.policy_loss_args == {"clip_range": 0.2, "clip_ratio_c": 2.5}
    assert load(overrides=["algorithm.kl_loss_fn=none"]).spec.stages[0].algorithm.kl_loss_args == {}
    (text,) = errors(overrides=["algorithm.policy_loss_fn_args={clip_rang: 0.1}"])
    assert "algorithm.policy_loss_fn_args" in text
    assert "clip_rang" in text
    (text,) = errors(overrides=["algorithm.kl_loss_fn=k4"])
    assert "algorithm.kl_loss_fn" in text


def test_the_advantage_function_is_checked_with_the_file(load: Load, errors: Errors) -> None:
    algorithm = load(overrides=["algorithm.advantage_fn=rloo"]).spec.stages[0].algorithm
    assert (algorithm.advantage, algorithm.greedy_rollouts) == ("rloo", 0)
    baseline = load(overrides=["algorithm.advantage_fn=remax"]).spec.stages[0].algorithm
    assert baseline.greedy_rollouts == 1
    (text,) = errors(overrides=["algorithm.advantage_fn=rlo"])
    assert "algorithm.advantage_fn" in text
    assert "did you mean 'rloo'" in text
    (text,) = errors(overrides=["algorithm.advantage_fn=gigpo", "algorithm.advantage_fn_args={gamma: 2}"])
    assert "algorithm.advantage_fn_args.gamma: is 2" in text
    assert load(overrides=["algorithm.advantage_fn=clipb"]).spec.stages[0].algorithm.advantage == "clipb"


def test_a_critic_and_a_teacher_are_what_the_advantages_need(load: Load, errors: Errors, tmp_path: Path) -> None:
    ppo = ["algorithm.advantage_fn=ppo", "trainer.critic_warmup=5"]
    trainer = load(overrides=[*ppo, "trainer.trainer_config={critic: {optim: {lr: 0.01}, grad_clip: 2}}"])
    found = trainer.spec.stages[0].trainer
    assert (found.critic_path, found.critic_warmup_steps) == ("", 5)
    assert found.engine_args["critic_lr"] == 0.01
    assert found.engine_args["critic_grad_clip"] == 2.0
    mine = load(overrides=[*ppo, f"model.critic_model_path={tmp_path}"]).spec.stages[0].trainer
    assert mine.critic_path == str(tmp_path)
    (text,) = errors(overrides=[*ppo, "trainer.trainer_config={critic: {optim: {lr: fast}}}"])
    assert "trainer.trainer_config.critic.optim.lr" in text
    assert any("no critic" in warning for warning in load(overrides=["trainer.critic_warmup=5"]).warnings)
    teacher = "algorithm.advantage_fn=on_policy_distill"
    (text,) = errors(overrides=[teacher])
    assert "explorer.auxiliary_models" in text
    assert "names no teacher" in text
    taught = load(overrides=[teacher, f"explorer.auxiliary_models=[{{model_path: {tmp_path}}}]"])
    assert taught.spec.stages[0].trainer.teacher_path == str(tmp_path)


def test_an_adapter_is_named_once(load: Load, errors: Errors) -> None:
    lora = load(overrides=["model.lora_configs=[{name: a, lora_rank: 8, target_modules: [q_proj]}]"])
    found = lora.spec.stages[0].model.lora
    assert found is not None
    assert (found.rank, found.alpha, found.target_modules) == (8, 32, ("q_proj",))
    (text,) = errors(overrides=["model.lora_configs=[{name: a}, {name: b}]"])
    assert "model.lora_configs" in text
    assert "2 adapters" in text
    (text,) = errors(overrides=["model.lora_configs=[{name: a, target_modules: 3}]"])
    assert "target_modules" in text


def test_how_token_losses_become_one_is_said_by_the_user_the_loss_or_the_algorithm(load: Load) -> None:
    def mode(*overrides: str) -> str:
        return load(overrides=[f"algorithm.{each}" for each in overrides]).spec.stages[0].algorithm.loss_agg_mode

    assert mode() == "token-mean"
    assert mode("algorithm_type=gspo") == mode("policy_loss_fn=gspo") == "seq-mean-token-mean"
    assert mode("algorithm_type=sapo") == mode("policy_loss_fn=sapo") == "seq-mean-token-mean"
    assert mode("policy_loss_fn=rec", "policy_loss_fn_args={clip_mode: gspo-one-side}") == "seq-mean-token-mean"
    assert mode("algorithm_type=gspo", "loss_agg_mode=token-mean") == "token-mean"
    scaled = load(overrides=["algorithm.loss_agg_mode=seq-mean-token-sum-norm", "algorithm.loss_scale_factor=100"])
    assert scaled.spec.stages[0].algorithm.loss_scale_factor == 100.0


def test_each_type_has_its_own_repeat_times(load: Load) -> None:
    for kind, repeat_times in (("grpo", 8), ("dapo", 16), ("gspo", 2)):
        (stage,) = load(overrides=[f"algorithm.algorithm_type={kind}", "algorithm.repeat_times=null"]).spec.stages
        assert stage.algorithm.repeat_times == repeat_times


def test_a_loss_of_rollouts_is_refused_where_there_are_rows_only(errors: Errors) -> None:
    rows = ["mode=train", "algorithm.algorithm_type=sft", "algorithm.policy_loss_fn=ppo"]
    texts = errors(overrides=rows)
    assert any("algorithm.policy_loss_fn" in text and "log-probabilities of rollouts" in text for text in texts)


def test_an_unknown_algorithm_is_told_the_nearest(errors: Errors) -> None:
    (text,) = errors(overrides=["algorithm.algorithm_type=gropo"])
    assert "did you mean 'grpo'?" in text


@pytest.mark.parametrize(
    ("style", "interval", "offset", "staleness", "inflight"),
    [
        ("fixed", 1, 0, 0, 1),
        ("fixed", 4, 0, 3, 4),
        ("fixed", 1, 1, 1, 2),
        ("fixed", 4, 1, 4, 5),
        ("fully_async", 1, 0, 2, 2),
        ("fully_async", 4, 0, 5, 2),
        ("dynamic_by_explorer", 1, 0, 2, 2),
        ("explorer_driven", 3, 1, 7, 4),
        ("dynamic_by_trainer", 1, 0, 2, 2),
        ("trainer_driven", 4, 0, 10, 4),
    ],
)
def test_the_schedule_decides_what_may_be_trained_on(
    load: Load, style: str, interval: int, offset: int, staleness: int, inflight: int
) -> None:
    overrides = [
        f"synchronizer.sync_{k}={v}" for k, v in {"style": style, "interval": interval, "offset": offset}.items()
    ]
    stage = load(overrides=overrides).spec.stages[0]
    current = {"dynamic_by_explorer": "explorer_driven", "dynamic_by_trainer": "trainer_driven"}
    assert stage.synchronizer.sync_style == current.get(style, style)
    assert (stage.policy.max_staleness_versions, stage.policy.max_inflight_batches) == (staleness, inflight)


def test_each_side_may_have_its_own_interval(load: Load, errors: Errors) -> None:
    sides = ["synchronizer.explorer_sync_interval=4", "synchronizer.trainer_sync_interval=6"]
    stage = load(overrides=[*sides, "explorer.eval_interval=10"]).spec.stages[0]
    assert (explorer_interval(stage.synchronizer), trainer_interval(stage.synchronizer)) == (4, 6)
    assert (stage.policy.max_staleness_versions, stage.policy.max_inflight_batches) == (7, 4)
    assert stage.eval_interval == 8, "a multiple of the explorers'"
    control = ["algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=6"]
    (text,) = errors(overrides=[*sides, *control])
    assert "up to 7 steps old" in text
    assert "at least 7" in text


@pytest.mark.parametrize(
    ("style", "field", "says"),
    [
        ("explorer_driven", "trainer_sync_interval=3", "explorers request weights"),
        ("fully_async", "explorer_sync_interval=3", "never stop"),
        ("fully_async", "sync_offset=2", "never stop"),
    ],
)
def test_what_a_style_does_not_look_at_is_said(load: Load, style: str, field: str, says: str) -> None:
    spec = load(overrides=[f"synchronizer.sync_style={style}", f"synchronizer.{field}"]).spec
    (text,) = [text for text in spec.warnings if field.partition("=")[0] in text]
    assert says in text


def test_a_deterministic_run_has_one_batch_under_way_at_a_time(load: Load) -> None:
    policy = load(overrides=["deterministic=true", "synchronizer.sync_interval=3"]).spec.stages[0].policy
    assert (policy.kind, policy.max_inflight_batches, policy.max_staleness_versions) == ("in_order", 1, 2)


def test_staleness_control_sets_the_bound(load: Load, errors: Errors) -> None:
    control = ["algorithm.sample_strategy=staleness_control", "synchronizer.sync_style=fully_async"]
    stage = load(overrides=[*control, "algorithm.sample_strategy_args.max_staleness=7"]).spec.stages[0]
    assert stage.policy.max_staleness_versions == 7
    (text,) = errors(
        overrides=[*control, "algorithm.sample_strategy_args.max_staleness=1", "synchronizer.sync_interval=4"]
    )
    assert "up to 3 steps old" in text


def test_deterministic_means_in_order(load: Load, errors: Errors) -> None:
    spec = load(overrides=["deterministic=true", "seed=7"]).spec
    assert spec.stages[0].policy.kind == "in_order"
    assert spec.seed == 7
    (warning,) = (text for text in spec.warnings if text.startswith("deterministic"))
    assert "explorer.max_timeout (1800 s)" in warning, "time can retire a task"
    assert not any(text.startswith("deterministic") for text in load().spec.warnings)
    (text,) = errors(overrides=["deterministic=true", "synchronizer.sync_offset=1"])
    assert "sync_offset" in text


def test_colocated_sides_take_turns_on_one_device(load: Load, errors: Errors) -> None:
    submission = load(overrides=["mode=colocate"])
    stage = submission.spec.stages[0]
    assert (stage.kind, stage.turns, stage.synchronizer.sync_method) == ("both", True, "memory")
    assert stage.synchronizer == Synchronizer(sync_method="memory")
    assert (stage.rollout.threads, stage.trainer.threads) == (0, 0), "each takes them all in its turn"
    assert not any("colocate" in warning or "nccl" in warning for warning in submission.spec.warnings)
    assert not load().spec.stages[0].turns
    asked = ["synchronizer.sync_style=fully_async", "synchronizer.sync_offset=2", "trainer.engine_args={threads: 1}"]
    other = load(overrides=["mode=colocate", *asked]).spec
    assert sum(warning.startswith("mode colocate: synchronizer.") for warning in other.warnings) == 2
    assert other.stages[0].synchronizer == stage.synchronizer
    assert other.stages[0].trainer.threads == 1
    pinned = load(overrides=["mode=colocate", "deterministic=true"]).spec.stages[0]
    assert (pinned.rollout.threads, pinned.trainer.threads) == (1, 1), "bits depend on them"
    (text,) = errors(overrides=["mode=colocate", "explorer.rollout_model.engine_num=2"])
    assert "one device" in text


def test_engines_of_the_guide_run_on_torch_without_a_gpu(load: Load) -> None:
    submission = load(overrides=["trainer.engine_args={threads: 2, critic_lr: 3}", "trainer.trainer_type=verl"])
    stage = submission.spec.stages[0]
    assert (stage.rollout.engine, stage.trainer.engine) == ("torch", "torch")
    assert (stage.trainer.threads, stage.trainer.engine_args) == (2, {"critic_lr": 3})
    (warning,) = (text for text in submission.spec.warnings if "torch" in text)
    assert warning.startswith("trainer.trainer_type verl: torch trains, on the CPU: verl is not installed")
    quiet = load(overrides=["trainer.trainer_type=fake", "explorer.rollout_model.engine_type=fake"])
    assert quiet.spec.stages[0].rollout.engine == quiet.spec.stages[0].trainer.engine == "fake"
    assert not any("torch" in warning for warning in quiet.spec.warnings)


def test_a_cluster_must_leave_the_trainer_a_slot(load: Load, errors: Errors) -> None:
    two = ["cluster.node_num=1", "cluster.gpu_per_node=2"]
    assert any("2 process slots" in warning for warning in load(overrides=two).spec.warnings)
    (text,) = errors(overrides=[*two, "explorer.rollout_model.engine_num=2"])
    assert "the trainer needs one" in text


def test_workflows_and_rewards_take_the_nearest_given_name(load: Load) -> None:
    text = """
    checkpoint_root_dir: /c
    algorithm: {algorithm_type: grpo}
    model: {model_path: /m, max_model_len: 64, temperature: 0.7}
    buffer:
      default_workflow_type: math_workflow
      default_reward_fn_type: math_reward
      explorer_input:
        default_eval_workflow_type: simple_workflow
        taskset: {path: /t}
        eval_tasksets:
          - {path: /e, rollout_args: {temperature: 0.1}}
          - {path: /f, default_workflow_type: math_boxed_workflow, default_reward_fn_type: math_boxed_reward}
    """
    stage = load(text).spec.stages[0]
    assert stage.taskset is not None
    assert (stage.taskset.workflow, stage.taskset.reward) == ("math_workflow", "math_reward")
    assert [(e.name, e.workflow, e.reward) for e in stage.evals] == [
        ("eval_taskset_0", "simple_workflow", "math_reward"),
        ("eval_taskset_1", "math_boxed_workflow", "math_boxed_reward"),
    ]
    assert [e.sampling.temperature for e in stage.evals] == [0.1, 0.7]


@pytest.mark.parametrize(("asked", "interval", "floored"), [(50, 8, 48), (3, 8, 8), (50, 1, 50), (0, 8, 0)])
def test_evaluation_falls_on_published_versions(load: Load, asked: int, interval: int, floored: int) -> None:
    overrides = [f"explorer.eval_interval={asked}", f"synchronizer.sync_interval={interval}"]
    assert load(overrides=overrides).spec.stages[0].eval_interval == floored


def test_warm_up_is_counted_once_the_steps_are_known(load: Load) -> None:
    ratio = "algorithm.optimizer.lr_warmup_steps_ratio=0.4"
    optimizer = load(overrides=[ratio]).spec.stages[0].algorithm.optimizer
    assert (optimizer.lr_warmup_steps, optimizer.lr_warmup_steps_ratio) == (2, 0.0)
    optimizer = load(overrides=[ratio, "buffer.total_steps=null"]).spec.stages[0].algorithm.optimizer
    assert (optimizer.lr_warmup_steps, optimizer.lr_warmup_steps_ratio) == (-1, 0.4)


def test_a_share_of_the_steps_without_a_step_is_no_warm_up_and_is_said(load: Load) -> None:
    ratio = "algorithm.optimizer.lr_warmup_steps_ratio"
    said = f"{ratio} 0.1 is less than one of 5 steps: there is no warm-up"
    assert said in load(overrides=[f"{ratio}=0.1"]).spec.warnings
    for other in ([], [f"{ratio}=0.2"], [f"{ratio}=0.1", "algorithm.optimizer.lr_warmup_steps=0"]):
        assert not [text for text in load(overrides=other).spec.warnings if "warm-up" in text]


def test_the_trainers_clip_wins_over_the_optimizers(load: Load) -> None:
    clip = "algorithm.optimizer.clip_grad=0.5"
    assert load(overrides=[clip]).spec.stages[0].algorithm.optimizer.clip_grad == 0.5
    assert load(overrides=[clip, "trainer.grad_clip=2"]).spec.stages[0].algorithm.optimizer.clip_grad == 2.0


def test_one_wrong_part_of_a_stage_does_not_hide_the_others(errors: Errors) -> None:
    overrides = ["model.max_prompt_tokens=60", "model.max_response_tokens=60", "algorithm.repeat_times=1"]
    found = errors(overrides=[*overrides, "model.model_path=''", "buffer.explorer_input.taskset.path=''"])
    fields = {text.split(":")[0].split("] ")[1] for text in found}
    assert fields == {
        "model.max_model_len",
        "algorithm.repeat_times",
        "model.model_path",
        "buffer.explorer_input.taskset.path",
    }
    wrong = ["deterministic=true", "explorer.dynamic_timeout.enable=true"]
    found = errors(overrides=[*wrong, "buffer.explorer_input.taskset.default_reward_fn_type=math_rewrd"])
    assert len(found) == 2
    assert any("did you mean 'math_reward'?" in text for text in found)


@pytest.mark.parametrize(("algorithm", "mode"), [("sft", "both"), ("sft", "explore")])
def test_the_mode_must_suit_the_algorithm(errors: Errors, algorithm: str, mode: str) -> None:
    overrides = [f"algorithm={{algorithm_type: {algorithm}}}", f"mode={mode}", "buffer.train_batch_size=4"]
    rows = "buffer.trainer_input.experience_buffer={path: /rows, storage_type: file}"
    (text,) = errors(overrides=[*overrides, rows])
    assert "] mode: " in text


STAGES = "stages=[{stage_name: a, mode: %s}, {stage_name: b, mode: %s}]"


def test_a_mode_may_bring_one_half(load: Load, errors: Errors) -> None:
    both = load().spec
    for mode, other in (("explore", "train"), ("train", "explore")):
        half = load(overrides=[f"mode={mode}"]).spec
        assert half.half == mode
        assert difference(half, both) is None
        assert half.stages[0].kind == "both"
        assert any(f"submit the same file with mode: {other}" in text for text in half.warnings)
    assert difference(both, load(overrides=["group=g"]).spec) == ("group", "", "g")
    found = difference(both, load(overrides=["buffer.batch_size=8"]).spec)
    assert found == ("stages[0].batch_size", both.stages[0].batch_size, 8)
    assert load(overrides=[STAGES % ("explore", "explore")]).spec.half == "explore"
    memory = load(overrides=["mode=train", "synchronizer.sync_method=memory"]).spec.stages[0]
    assert memory.synchronizer.sync_method == "checkpoint", "explorers may be on another machine"
    (text,) = errors(overrides=[STAGES % ("explore", "both")])
    assert "] mode: " in text
    assert "the modes both, explore" in text


def test_a_stage_may_only_collect(load: Load, errors: Errors) -> None:
    collect = ["mode=explore", "explorer.collect_only=true"]
    spec = load(overrides=collect).spec
    (stage,) = spec.stages
    assert spec.half == "both"
    assert not any("half" in text for text in spec.warnings)
    assert (stage.kind, stage.collect_groups, stage.total_steps) == ("explore", 10, 0)
    assert stage.synchronizer.sync_style == "fully_async"
    evals = "buffer.explorer_input.eval_tasksets=[{path: /e.jsonl, default_workflow_type: math_workflow}]"
    held = load(overrides=[*collect, evals]).spec
    assert held.stages[0].evals == ()
    assert any("eval_tasksets are not evaluated" in text for text in held.warnings)
    (text,) = errors(overrides=["explorer.collect_only=true"])
    assert "explorer.collect_only" in text
    assert "write mode: explore" in text
