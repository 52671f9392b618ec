"""`model.tinker`: the service trains and generates, and what means nothing to it is refused or said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.daemon.config.conftest import Load

from rftd.workers.devices.host import ANY_HOST, Host

GUIDE = """
project: p
name: n
checkpoint_root_dir: /c
algorithm:
  algorithm_type: grpo
  repeat_times: 8
  kl_loss_fn_args:
    kl_coef: 0.0
model:
  model_path: /m/org/tiny
  max_model_len: 64
  tinker:
    enable: true
    base_model: org/Other
cluster:
  node_num: 1
  gpu_per_node: 4
buffer:
  batch_size: 2
  total_steps: 5
  explorer_input:
    taskset:
      path: /t.jsonl
      default_workflow_type: math_workflow
explorer:
  rollout_model:
    engine_num: 4
synchronizer:
  sync_method: checkpoint
"""


def test_the_guides_file_is_trained_by_the_service(load: Load) -> None:
    found = load(GUIDE)
    stage = found.spec.stages[0]
    assert (stage.trainer.engine, stage.rollout.engine, stage.synchronizer.sync_method) == (
        "tinker",
        "tinker",
        "service",
    )
    assert stage.model.path == "/m/org/tiny"
    assert stage.trainer.engine_args == {
        "base_model": "org/Other",
        "rank": 32,
        "seed": None,
        "train_mlp": True,
        "train_attn": True,
        "train_unembed": True,
    }
    assert stage.trainer.save_hf == "never"
    assert not [each for each in found.spec.warnings if "tinker" in each or "checkpoint" in each]


@pytest.mark.parametrize(
    "algorithm", ["grpo", "opmd", "reinforceplusplus", "rloo", "gspo", "importance_sampling_of_grpo"]
)
def test_algorithms_without_a_critic_and_a_teacher_are_trained(load: Load, algorithm: str) -> None:
    """The guide's backend has neither reinforceplusplus nor rloo; here advantages are made before the service."""
    text = GUIDE.replace("algorithm_type: grpo", f"algorithm_type: {algorithm}")
    if algorithm.endswith("_of_grpo"):
        text = GUIDE.replace("algorithm_type: grpo", "algorithm_type: grpo\n  policy_loss_fn: importance_sampling")
    assert load(text).spec.stages[0].trainer.engine == "tinker"


@pytest.mark.parametrize("algorithm", ["grpo", "opmd"])
def test_the_default_kl_loss_compares_with_the_base_model(load: Load, algorithm: str) -> None:
    text = GUIDE.replace("algorithm_type: grpo", f"algorithm_type: {algorithm}")
    (stage,) = load(text.replace("  kl_loss_fn_args:\n    kl_coef: 0.0\n", "")).spec.stages
    assert stage.algorithm.kl_loss_args["kl_coef"] > 0
    assert stage.trainer.engine == "tinker"


def test_a_stage_that_only_trains_publishes_at_the_service_too(load: Load) -> None:
    """Its weights are those that the next stage begins with; no other channel can carry a name."""
    warmup = """
stages:
- stage_name: warmup
  mode: train
  algorithm: {algorithm_type: sft}
  buffer:
    train_batch_size: 4
    total_steps: 3
    trainer_input:
      experience_buffer: {name: warmup, path: /w.jsonl}
- stage_name: rft
"""
    found = load(GUIDE + warmup)
    assert [(stage.kind, stage.synchronizer.sync_method) for stage in found.spec.stages] == [
        ("train", "service"),
        ("both", "service"),
    ]


def test_what_the_file_says_of_the_service(load: Load) -> None:
    text = GUIDE.replace(
        "    base_model: org/Other\n", "    rank: 8\n    seed: 3\n    train_mlp: false\n    base_url: http://here:1\n"
    )
    text = text.replace(
        "explorer:\n", "trainer:\n  save_hf_checkpoint: last\n  engine_args: {device: cpu}\nexplorer:\n"
    )
    text = text.replace("  tinker:\n", "  lora_configs: [{name: a}]\n  tinker:\n").replace(": checkpoint", ": memory")
    found = load(text)
    stage = found.spec.stages[0]
    args = stage.trainer.engine_args
    assert (args["base_model"], args["rank"], args["seed"], args["train_mlp"]) == ("org/tiny", 8, 3, False)
    assert args["base_url"] == stage.rollout.engine_args["base_url"] == "http://here:1"
    assert stage.model.lora is None
    for said in ("base_model is not set", "lora_configs", "save_hf_checkpoint", "sync_method memory", "device has"):
        assert any(said in each for each in found.spec.warnings), said


@pytest.mark.parametrize(
    ("old", "new", "field", "said"),
    [
        ("algorithm_type: grpo", "algorithm_type: ppo", "algorithm.algorithm_type", "ppo needs a critic's values"),
        (
            "  kl_loss_fn_args:",
            "  entropy_loss_fn: default\n  entropy_loss_fn_args: {entropy_coef: 0.1}\n  kl_loss_fn_args:",
            "algorithm.entropy_loss_fn_args.entropy_coef",
            "the entropy at each token",
        ),
        ("  max_model_len: 64", "  max_model_len: 64\n  temperature: 0.7", "model.temperature", "at temperature 0.7"),
        (
            "  kl_loss_fn_args:",
            "  optimizer: {lr: 0.1, optimizer_type: sgd}\n  kl_loss_fn_args:",
            "algorithm.optimizer.optimizer_type",
            "is sgd, but the Tinker service only has AdamW",
        ),
        (
            "    base_model: org/Other",
            "    train_mlp: false\n    train_attn: false\n    train_unembed: false",
            "model.tinker.train_unembed",
            "nothing is trained",
        ),
        (
            "    base_model: org/Other",
            "    base_url: tinker.example",
            "model.tinker.base_url",
            "is no http address",
        ),
        ("    base_model: org/Other", "    rank: 0", "model.tinker.rank", "greater than or equal to 1"),
        ("    base_model: org/Other", "    seed: -1", "model.tinker.seed", "greater than or equal to 0"),
        ("    base_model: org/Other", "    train_mlp: maybe", "model.tinker.train_mlp", "expected true or false"),
        ("    base_model: org/Other", "    rnk: 3", "model.tinker.rnk", "did you mean 'rank'"),
        (
            "algorithm_type: grpo",
            "algorithm_type: on_policy_distill",
            "algorithm.algorithm_type",
            "log-probabilities under a teacher",
        ),
        ("project: p", "project: p\ndeterministic: true", "deterministic", "does not guarantee identical bits"),
        ("enable: true", "enable: false", "cluster.gpu_per_node", "the trainer needs one"),
        (
            "      path: /t.jsonl",
            "      path: /t.jsonl\n      rollout_args: {min_p: 0.1}",
            "rollout_args.min_p",
            "not supported by the Tinker service: min_p",
        ),
    ],
)
def test_what_the_service_cannot_do_is_refused_with_its_field(
    errors: Callable[..., list[str]], old: str, new: str, field: str, said: str
) -> None:
    texts = errors(GUIDE.replace(old, new))
    assert any(field in text and said in text for text in texts), texts


def test_service_without_its_package_is_refused_with_the_extra_and_the_lock(
    load: Load, errors: Callable[..., list[str]]
) -> None:
    (said,) = errors(GUIDE, host=Host(no_gpu="nvidia-smi not found"))
    for each in ("model.tinker.enable", "not installed", "pip install 'rftd[tinker]'", "make engines-cpu"):
        assert each in said
    assert load(GUIDE, host=ANY_HOST).spec.stages[0].trainer.engine == "tinker", "whose workers run elsewhere"


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("trainer: {trainer_type: tinker}", "trainer.trainer_type"),
        ("explorer: {rollout_model: {engine_type: tinker}}", "explorer.rollout_model.engine_type"),
        ("synchronizer: {sync_method: service}", "synchronizer.sync_method"),
    ],
)
def test_one_part_of_it_alone_is_refused(
    small: str, errors: Callable[..., list[str]], section: str, field: str
) -> None:
    assert any(field in text and "tinker" in text for text in errors(f"{small}{section}\n"))
