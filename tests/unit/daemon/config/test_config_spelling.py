"""Both spellings of the schema load; the current one comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rftd.daemon.config.field_path import parse
from rftd.daemon.config.loading import Submission
from rftd.workers.devices.host import ANY_HOST

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

TASKSET = "buffer.explorer_input.taskset"
BUFFER = "buffer.trainer_input.experience_buffer"
SPELLINGS = [
    ("buffer.default_workflow_type=simple_workflow", "buffer.explorer_input.default_workflow_type", "simple_workflow"),
    ("buffer.default_reward_fn_type=math_reward", "buffer.explorer_input.default_reward_fn_type", "math_reward"),
    (f"{BUFFER}.use_priority_queue=true", f"{BUFFER}.replay_buffer.enable", True),
    (f"{BUFFER}.reuse_cooldown_time=1.5", f"{BUFFER}.replay_buffer.reuse_cooldown_time", 1.5),
    (f"{TASKSET}.task_selector={{selector_type: shuffle}}", f"{TASKSET}.data_selector.selector_type", "shuffle"),
    ("algorithm.optimizer.warmup_style=cosine", "algorithm.optimizer.lr_scheduler_type", "cosine"),
    ("explorer.runner_num=3", "explorer.runner_per_model", 3),
    ("explorer.api_port=9", "explorer.proxy_port", 9),
    ("trainer.actor_grad_clip=0.5", "trainer.grad_clip", 0.5),
    ("trainer.ppo_max_token_len_per_gpu=64", "trainer.max_token_len_per_gpu", 64),
    (f"{BUFFER}.replay_buffer_kwargs={{priority_fn: tag}}", f"{BUFFER}.replay_buffer.priority_fn", "tag"),
    (f"{BUFFER}.replay_buffer_kwargs={{decay: 0.5}}", f"{BUFFER}.replay_buffer.priority_fn_args", {"decay": 0.5}),
    (
        "buffer.trainer_input.sft_warmup_dataset={path: /rows.jsonl}",
        "buffer.trainer_input.auxiliary_buffers.sft_dataset.path",
        "/rows.jsonl",
    ),
    ("synchronizer.sync_style=dynamic_by_explorer", "synchronizer.sync_style", "explorer_driven"),
    ("synchronizer.sync_style=dynamic_by_trainer", "synchronizer.sync_style", "trainer_driven"),
    ("synchronizer.sync_method=online", "synchronizer.sync_method", "nccl"),
    ("synchronizer.sync_method=OFFLINE", "synchronizer.sync_method", "checkpoint"),
    ("algorithm.sample_strategy=warmup", "algorithm.sample_strategy", "default"),
    ("explorer.rollout_model.engine_type=vllm_async", "explorer.rollout_model.engine_type", "vllm"),
    ("trainer.trainer_config_path=''", "trainer.trainer_config_path", None),
]


def _value(tree: Any, path: str) -> Any:
    for part in parse(path) or ():
        tree = tree.get(part) if isinstance(tree, dict) else tree[part]
    return tree


def _as_file(small: str, override: str) -> str:
    """The override written into the file, as a user of the older guide would have it."""
    import yaml

    tree = yaml.safe_load(small)
    key, _, text = override.partition("=")
    *sections, last = key.split(".")
    node = tree
    for section in sections:
        node = node.setdefault(section, {})
    node[last] = yaml.safe_load(text)
    return yaml.safe_dump(tree)


@pytest.mark.parametrize(("old", "path", "value"), SPELLINGS)
def test_the_older_spelling_becomes_the_current_one(load: Load, small: str, old: str, path: str, value: Any) -> None:
    replay = f"{BUFFER}.replay_buffer.enable=true"  # a cooldown without it is an error
    assert _value(load(_as_file(small, old), [replay], host=ANY_HOST).config, path) == value
    assert _value(load(small, [old, replay], host=ANY_HOST).config, path) == value


def test_a_spelling_that_changed_is_mentioned(load: Load, small: str) -> None:
    submission = load(small.replace("  batch_size: 2", "  batch_size: 2\n  default_reward_fn_type: math_reward"))
    assert any("older spelling of buffer.explorer_input.default_reward_fn_type" in w for w in submission.warnings)


def test_the_older_spelling_in_a_stage_too(load: Load, small: str) -> None:
    stages = "stages:\n- stage_name: a\n  buffer: {default_reward_fn_type: math_reward}\n"
    (stage,) = load(small + stages).spec.stages
    assert stage.taskset is not None
    assert stage.taskset.reward == "math_reward"


def test_the_replay_arguments_of_2025_that_are_null_or_wrong(load: Load, errors: Errors) -> None:
    assert load(overrides=[f"{BUFFER}.replay_buffer_kwargs=null"]).spec.stages[0] == load().spec.stages[0]
    (text,) = errors(overrides=[f"{BUFFER}.replay_buffer_kwargs=[1]"])
    assert "replay_buffer_kwargs: unknown field" in text
    (text,) = errors(overrides=[f"{BUFFER}={{use_priority_queue: true, replay_buffer_kwargs: {{decai: 1}}}}"])
    assert "replay_buffer_kwargs.decai: is 1" in text
    assert "'decay'" in text


def test_the_prompts_of_2025_hold_for_every_taskset_that_has_none(load: Load) -> None:
    tasks = "buffer.explorer_input"
    held_out = "[{path: /e.jsonl}, {path: /f.jsonl, format: {system_prompt: own, reply_prefix: ''}}]"
    given = [f"{tasks}.system_prompt=of all", f"{tasks}.reply_prefix=<think>", f"{tasks}.eval_tasksets={held_out}"]
    (stage,) = load(overrides=given).spec.stages
    assert stage.taskset is not None
    prompts = [(each.format.system_prompt, each.format.reply_prefix) for each in (stage.taskset, *stage.evals)]
    assert prompts == [("of all", "<think>"), ("of all", "<think>"), ("own", "")]


def test_two_spellings_must_agree(errors: Errors, load: Load, small: str) -> None:
    older, current = "  default_workflow_type: simple_workflow", "    default_workflow_type: {}"
    both = small.replace("  explorer_input:", f"{older}\n  explorer_input:\n{current}")
    load(both.format("simple_workflow"))
    (text,) = errors(both.format("math_workflow"))
    assert "set twice with different values" in text
    assert "exp.yaml:14:3" in text


def test_the_trainer_config_file_is_read_by_the_client(load: Load, small: str, tmp_path: Any, errors: Errors) -> None:
    (tmp_path / "verl.yaml").write_text("actor: {optim: {lr: 1e-6}}\ncritic: {optim: '${actor.optim}'}\n")
    config = load(small, ["trainer.trainer_config_path=verl.yaml"]).config
    assert config["trainer"] == {
        "trainer_config": {"actor": {"optim": {"lr": 1e-6}}, "critic": {"optim": {"lr": 1e-6}}}
    }
    (tmp_path / "verl.yaml").write_text("trainer: {critic_warmup: 3}\n")
    for override in ("trainer_config_path=verl.yaml", "trainer_config={trainer: {critic_warmup: 3}}"):
        assert load(small, [f"trainer.{override}"]).config["trainer"]["critic_warmup"] == 3
    (text,) = errors(small, ["trainer.trainer_config_path=none.yaml"])
    assert "trainer.trainer_config_path: no such file" in text
    assert "fix: check the path" in text


def test_what_has_no_effect_yet_is_said_once_and_only_if_set(load: Load) -> None:
    def said(*overrides: str) -> list[str]:
        return [w for w in load(overrides=overrides).spec.warnings if "has no effect" in w]

    assert said() == []
    assert said("explorer.concurrent_mode=sequential", "algorithm.kl_penalty_fn=none", "log.level=info") == []
    assert said(f"{BUFFER}.replay_buffer.enable=true") == []
    assert said("explorer.db_url=sqlite:///x") == ["explorer.db_url has no effect: the log stores all served answers"]
    assert len(said("explorer.db_url=sqlite:///x", "model.fully_sharded_loras=true")) == 2
