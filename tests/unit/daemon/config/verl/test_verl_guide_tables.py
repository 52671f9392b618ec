"""The tables of the alignment guide: each key goes in, and its effect is seen in what will run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.config.loading import load_text
from rftd.daemon.config.verl.importing import import_command
from rftd.daemon.config.verl.table import TABLES
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.workers.devices.host import ANY_HOST

Fields = Callable[..., dict[str, Any]]
Seen = Callable[[StageSpec], Any]
SMALL = ("data.train_files=d/train.jsonl", "actor_rollout_ref.model.path=/m", "data.val_files=d/test.jsonl")
GRPO = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4")
CONFIG = "actor_rollout_ref."
ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."


def experiment(*overrides: str) -> ExperimentSpec:
    """What will run: the file that the command line becomes, loaded."""
    text = import_command([*SMALL, *overrides]).text
    environ = {"HOME": "/home/me"}
    return load_text(text, "imported.yaml", environ=environ, cwd=Path("/w"), host=ANY_HOST).spec


def stage(*overrides: str) -> StageSpec:
    return experiment(*overrides).stages[0]


def tasks(run: StageSpec) -> TasksetSpec:
    assert run.taskset is not None
    return run.taskset


ROWS: list[tuple[str, tuple[str, ...], Seen, Any]] = [
    ("algorithm.adv_estimator=gae", (), lambda s: (s.algorithm.kind, s.algorithm.advantage), ("ppo", "ppo")),
    ("algorithm.adv_estimator=rloo", GRPO[1:], lambda s: s.algorithm.advantage, "rloo"),
    ("algorithm.gamma=0.9", (), lambda s: s.algorithm.advantage_args["gamma"], 0.9),
    ("algorithm.lam=0.95", (), lambda s: s.algorithm.advantage_args["lam"], 0.95),
    ("algorithm.use_kl_in_reward=False", (), lambda s: s.algorithm.kl_penalty, "none"),
    (
        "algorithm.use_kl_in_reward=True",
        GRPO,
        lambda s: (s.algorithm.kl_penalty, s.algorithm.kl_penalty_place),
        ("k1", "before"),
    ),
    (
        "algorithm.kl_penalty=low_var_kl",
        ("algorithm.use_kl_in_reward=True",),
        lambda s: s.algorithm.kl_penalty,
        "low_var_kl",
    ),
    (
        "algorithm.kl_ctrl.kl_coef=0.02",
        ("algorithm.use_kl_in_reward=True",),
        lambda s: s.algorithm.kl_penalty_args["kl_coef"],
        0.02,
    ),
    ("data.train_files=x/train.jsonl", (), lambda s: (tasks(s).path, tasks(s).split), ("/w/x", "train")),
    ("data.val_files=[a/test.jsonl,b/test.jsonl]", (), lambda s: [each.path for each in s.evals], ["/w/a", "/w/b"]),
    ("data.prompt_key=q", (), lambda s: (tasks(s).format.prompt_key, s.evals[0].format.prompt_key), ("q", "q")),
    ("data.response_key=a", (), lambda s: (tasks(s).format.response_key, s.evals[0].format.response_key), ("a", "a")),
    ("data.train_batch_size=512", (), lambda s: (s.batch_size, s.synchronizer.sync_interval), (256, 2)),
    ("data.val_batch_size=4", (), lambda s: s.batch_size, 256),
    ("data.max_prompt_length=99", (), lambda s: s.model.max_prompt_tokens, 99),
    ("data.max_response_length=77", (), lambda s: s.model.max_response_tokens, 77),
    ("data.filter_overlong_prompts=False", (), lambda s: s.model.enable_prompt_truncation, False),
    ("data.truncation=error", (), lambda s: s.model.enable_prompt_truncation, True),
    ("data.shuffle=True", (), lambda s: tasks(s).selector, "shuffle"),
    ("data.shuffle=False", (), lambda s: tasks(s).selector, "sequential"),
    ("actor_rollout_ref.model.path=/other", (), lambda s: s.model.path, "/other"),
    (f"{ACTOR}optim.lr=3e-6", (), lambda s: s.algorithm.optimizer.lr, 3e-6),
    (f"{ACTOR}optim.weight_decay=0.1", (), lambda s: s.algorithm.optimizer.weight_decay, 0.1),
    (f"{ACTOR}optim.lr_warmup_steps_ratio=0.1", (), lambda s: s.algorithm.optimizer.lr_warmup_steps_ratio, 0.1),
    (f"{ROLLOUT}n=6", GRPO[:1], lambda s: (s.algorithm.repeat_times, s.train_batch_size), (6, 1536)),
    (f"{ACTOR}ppo_mini_batch_size=128", (), lambda s: (s.batch_size, s.synchronizer.sync_interval), (128, 8)),
    (f"{ACTOR}ppo_max_token_len_per_gpu=9000", (), lambda s: s.trainer.max_tokens_per_micro_batch, 9000),
    (f"{ACTOR}grad_clip=0.5", (), lambda s: s.algorithm.optimizer.clip_grad, 0.5),
    (f"{ACTOR}use_kl_loss=False", (), lambda s: s.algorithm.kl_loss, "none"),
    (
        f"{ACTOR}use_kl_loss=True",
        (),
        lambda s: (s.algorithm.kl_loss, s.algorithm.kl_loss_args),
        ("low_var_kl", {"kl_coef": 0.001}),
    ),
    (f"{ACTOR}kl_loss_type=mse", (f"{ACTOR}use_kl_loss=True",), lambda s: s.algorithm.kl_loss, "k2"),
    (f"{ACTOR}kl_loss_coef=0.04", (f"{ACTOR}use_kl_loss=True",), lambda s: s.algorithm.kl_loss_args["kl_coef"], 0.04),
    (f"{ACTOR}entropy_coeff=0.01", (), lambda s: s.algorithm.entropy_loss_args["entropy_coef"], 0.01),
    (
        f"{ROLLOUT}temperature=0.7",
        (),
        lambda s: (tasks(s).sampling.temperature, s.evals[0].sampling.temperature),
        (0.7, 0.7),
    ),
    (f"{ROLLOUT}top_p=0.9", (), lambda s: tasks(s).sampling.top_p, 0.9),
    (f"{ROLLOUT}top_k=20", (), lambda s: tasks(s).sampling.top_k, 20),
    (
        f"{ROLLOUT}val_kwargs.temperature=0.6",
        (),
        lambda s: (tasks(s).sampling.temperature, s.evals[0].sampling.temperature),
        (1.0, 0.6),
    ),
    (f"{ROLLOUT}val_kwargs.top_p=0.7", (), lambda s: s.evals[0].sampling.top_p, 0.7),
    (f"{ROLLOUT}val_kwargs.top_k=5", (), lambda s: s.evals[0].sampling.top_k, 5),
    (f"{ROLLOUT}val_kwargs.n=32", (), lambda s: s.evals[0].repeat_times, 32),
    (f"{ROLLOUT}val_kwargs.do_sample=False", (), lambda s: s.evals[0].sampling.temperature, 0.0),
    ("critic.model.path=/critic", (), lambda s: s.trainer.critic_path, "/critic"),
    ("critic.optim.lr=2e-5", (), lambda s: s.trainer.engine_args["critic_lr"], 2e-5),
    (
        "critic.optim.lr_warmup_steps_ratio=0.05",
        (),
        lambda s: s.trainer.engine_args["critic_lr_warmup_steps_ratio"],
        0.05,
    ),
    ("critic.optim.lr_warmup_steps=3", (), lambda s: s.trainer.engine_args["critic_lr_warmup_steps"], 12),
    ("critic.optim.weight_decay=0.1", (), lambda s: s.trainer.engine_args["critic_weight_decay"], 0.1),
    ("critic.optim.warmup_style=cosine", (), lambda s: s.trainer.engine_args["critic_lr_scheduler_type"], "cosine"),
    ("trainer.remove_previous_ckpt_in_save=True", (), lambda s: s.trainer.max_checkpoints_to_keep, 1),
    ("trainer.save_freq=20", (), lambda s: s.trainer.save_interval, 80),
    ("trainer.save_freq=-1", (), lambda s: s.trainer.save_interval, 0),
    ("trainer.test_freq=8", (), lambda s: s.eval_interval, 32),
    ("trainer.total_epochs=7", (), lambda s: (s.total_epochs, s.total_steps), (7, 0)),
    ("trainer.total_training_steps=10", (), lambda s: (s.total_epochs, s.total_steps), (0, 40)),
    ("trainer.critic_warmup=3", (), lambda s: s.trainer.critic_warmup_steps, 12),
    ("trainer.val_before_train=False", (), lambda s: s.eval_on_startup, False),
]
"""A key of the guide, what has to be given beside it, where it is seen, and what is seen there."""


@pytest.mark.parametrize(("override", "beside", "seen", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_a_key_has_its_effect(override: str, beside: tuple[str, ...], seen: Seen, expected: object) -> None:
    assert seen(stage(*beside, override)) == expected


def test_names_and_folders() -> None:
    spec = experiment("trainer.project_name=p", "trainer.experiment_name=n", "trainer.default_local_dir=/ckpt/p/n")
    assert (spec.project, spec.name, spec.job_dir) == ("p", "n", "/ckpt/p/n")
    assert experiment("trainer.default_local_dir=/ckpt").job_dir == "/ckpt/verl_examples/gsm8k"


IN_THE_FILE = [
    (f"{ACTOR}use_dynamic_bsz=True", "trainer.use_dynamic_bsz", True),
    (f"{ACTOR}ulysses_sequence_parallel_size=2", "trainer.ulysses_sequence_parallel_size", 2),
    (f"{ACTOR}ppo_micro_batch_size_per_gpu=4", f"trainer.trainer_config.{ACTOR}ppo_micro_batch_size_per_gpu", 4),
    (f"{ROLLOUT}gpu_memory_utilization=0.4", "explorer.rollout_model.gpu_memory_utilization", 0.4),
    (f"{ROLLOUT}tensor_model_parallel_size=4", "explorer.rollout_model.tensor_parallel_size", 4),
    ("trainer.n_gpus_per_node=4", "cluster.gpu_per_node", 4),
    ("trainer.nnodes=2", "cluster.node_num", 2),
    ("trainer.logger=['console','tensorboard']", "monitor.monitor_type", "tensorboard"),
    ("trainer.logger=swanlab", "monitor.monitor_type", "swanlab"),
    ("trainer.logger=[console,wandb,file,tensorboard,wandb]", "monitor.monitor_type", "wandb"),
    ("trainer.logger=[console,wandb,file,tensorboard,wandb]", "monitor.also", ["jsonl", "tensorboard"]),
    ("trainer.logger=[wandb,console]", "monitor.also", None),
    ("trainer.logger=[clearml,trackio]", "monitor.monitor_type", "trackio"),
    ("trainer.logger=console", "monitor.monitor_type", None),
    ("trainer.resume_mode=disable", "continue_from_checkpoint", False),
    ("trainer.resume_mode=auto", "continue_from_checkpoint", True),
    (f"{CONFIG}model.lora_rank=16", "model.lora_configs[0].lora_rank", 16),
    (f"{CONFIG}model.lora_rank=0", "model.lora_configs[0].lora_rank", None),
    (f"{ACTOR}clip_ratio_high=0.28", "algorithm.policy_loss_fn_args.clip_range_high", 0.28),
    (f"{ACTOR}loss_agg_mode=seq-mean-token-sum", "algorithm.loss_agg_mode", "seq-mean-token-sum"),
    (f"{ACTOR}policy_loss.loss_mode=gspo", "algorithm.policy_loss_fn", "gspo"),
    ("algorithm.norm_adv_by_std_in_grpo=False", "algorithm.advantage_fn_args.std_cal_level", "none"),
    ("algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_is", "token"),
    ("trainer.max_actor_ckpt_to_keep=3", "trainer.max_checkpoints_to_keep", 3),
]
"""Keys whose effect needs GPUs or a service, or that the guide does not name: the field in the file."""


@pytest.mark.parametrize(("override", "field", "value"), IN_THE_FILE, ids=[row[0] for row in IN_THE_FILE])
def test_a_key_has_its_field(fields: Fields, override: str, field: str, value: object) -> None:
    assert fields(override).get(field) == value


def test_the_reward_model_is_an_auxiliary_model(fields: Fields) -> None:
    found = fields("reward_model.enable=True", "reward_model.model.path=/rm", f"{ROLLOUT}tensor_model_parallel_size=1")
    assert {name: value for name, value in found.items() if "auxiliary" in name} == {
        "explorer.auxiliary_models[0].model_path": "/rm",
        "explorer.auxiliary_models[0].engine_num": 2,
        "explorer.auxiliary_models[0].tensor_parallel_size": 1,
    }


def test_one_gpu_is_shared_in_turns(fields: Fields) -> None:
    found = fields("trainer.n_gpus_per_node=1", f"{ROLLOUT}tensor_model_parallel_size=1")
    assert found["mode"] == "colocate"


def test_every_key_of_the_table_is_taken_by_its_rule() -> None:
    """A rule that is in the table and in no code would be reported as a person's work."""
    words = {
        "bool": "True",
        "count": "2",
        "int": "2",
        "number": "0.5",
        "text": "x",
        "texts": "x/train.jsonl",
        "any": "x",
    }
    known = {"algorithm.adv_estimator": "gae", "algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.type": "adaptive"}
    known |= {f"{ACTOR}{key}": "x" for key in ("checkpoint.save_contents", "checkpoint.contents")}
    known |= {f"{ACTOR}kl_loss_type": "kl", f"{ACTOR}policy_loss.loss_mode": "vanilla", f"{ACTOR}strategy": "fsdp"}
    known |= {f"{ACTOR}optim.{key}": "cosine" for key in ("lr_scheduler_type", "warmup_style")}
    known |= {
        f"{ACTOR}optim.optimizer": "AdamW",
        "trainer.n_gpus_per_node": "64",
        "reward_model.reward_manager": "naive",
    }
    rules = {row.name: row for row in (*TABLES.keys["guide"], *TABLES.keys["others"]) if row.fate == "rule"}
    imported = import_command([f"{name}={known.get(name, words[row.kind])}" for name, row in rules.items()])
    said = {line.key.partition("=")[0] for line in imported.lines}
    assert set(rules) <= said
    left = [str(line) for line in imported.lines if line.text.startswith("(write ") and "limit_rows" not in line.text]
    assert left == []
