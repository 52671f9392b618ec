"""Stages are laid over the global sections, deep, and inherit nothing that would contradict them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rftd.daemon.config.loading import Submission
from rftd.streams.log.marked import inputs_of

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

TWO = """
stages:
  - stage_name: warm
    mode: train
    algorithm: {algorithm_type: sft}
    buffer:
      train_batch_size: 3
      total_epochs: 2
      trainer_input: {experience_buffer: {path: /rows.jsonl}}
  - stage_name: rft
    algorithm: {optimizer: {weight_decay: 0.5}}
    trainer: {save_interval: 7}
"""


def test_a_stage_keeps_the_global_fields_that_it_does_not_set(load: Load, small: str) -> None:
    warm, rft = load(small + TWO, ["algorithm.optimizer.lr=3e-4", "trainer.max_checkpoints_to_keep=2"]).spec.stages
    assert warm.algorithm.optimizer.lr == rft.algorithm.optimizer.lr == 3e-4
    assert (rft.algorithm.optimizer.weight_decay, warm.algorithm.optimizer.weight_decay) == (0.5, 0.01)
    assert (rft.trainer.save_interval, rft.trainer.max_checkpoints_to_keep) == (7, 2)
    assert (warm.folder, rft.folder) == ("/c/p/n/warm", "/c/p/n/rft")


def test_another_algorithm_takes_its_own_parts(load: Load, small: str) -> None:
    parts = ["algorithm.kl_loss_fn=k3", "algorithm.kl_loss_fn_args={kl_coef: 0.2}"]
    warm, rft = load(small + TWO, parts).spec.stages
    assert (warm.algorithm.kl_loss, warm.algorithm.repeat_times, warm.algorithm.policy_loss) == ("none", 1, "sft")
    assert (rft.algorithm.kl_loss, rft.algorithm.kl_loss_args["kl_coef"]) == ("k3", 0.2)


def test_a_stages_epochs_are_not_silenced_by_global_steps(load: Load, small: str) -> None:
    warm, rft = load(small + TWO).spec.stages
    assert (warm.total_steps, warm.total_epochs) == (0, 2)
    assert (rft.total_steps, rft.total_epochs) == (5, 0)


def test_a_train_stage_reads_rows_and_explores_nothing(load: Load, small: str) -> None:
    warm, rft = load(small + TWO).spec.stages
    assert warm.dataset is not None
    assert warm.dataset.path == "/rows.jsonl"
    assert warm.taskset is None
    assert rft.taskset is not None
    assert rft.dataset is None


def test_an_error_names_the_stage_or_the_global_field(errors: Errors, small: str) -> None:
    (text,) = errors(small + TWO.replace("mode: train", "mode: both"))
    assert "stages[0].mode" in text
    assert "exp.yaml:21:11" in text
    texts = errors(small.replace("max_model_len: 64", "max_prompt_tokens: 3") + TWO)
    assert all("model.max_model_len" in text for text in texts)
    assert len(texts) == 1
    (text,) = errors(small + TWO.replace("/rows.jsonl", "sqlite:///x.db"))
    assert "stages[0].buffer.trainer_input.experience_buffer.path" in text


def test_each_path_of_the_file_is_made_whole_where_it_is_declared(load: Load, tmp_path: Path) -> None:
    """Those of a stage's teacher stayed relative; the daemon has another working directory."""
    text = """
    project: p
    name: n
    checkpoint_root_dir: c
    model:
      {model_path: ./m, critic_model_path: ./critic, max_model_len: 64, lora_configs: [{name: a, path: ./adapter}]}
    buffer:
      batch_size: 2
      total_steps: 5
      explorer_input:
        taskset: {path: ./t.jsonl, default_workflow_type: math_workflow}
        eval_tasksets:
          - path: ./e.jsonl
            default_workflow_type: math_workflow
            default_reward_fn_type: reward_model
            reward_fn_args: {path: ./judge}
    stages:
      - stage_name: only
        algorithm: {algorithm_type: on_policy_distill}
        explorer: {auxiliary_models: [{model_path: ./teacher}]}
    """
    spec = load(text).spec
    names = {"m", "adapter", "t.jsonl", "e.jsonl", "judge", "teacher"}
    assert inputs_of(spec) == {str(tmp_path / name) for name in names}
    assert spec.config["model"]["critic_model_path"] == str(tmp_path / "critic")


def test_two_stages_need_two_names(errors: Errors, small: str) -> None:
    (text,) = errors(small + TWO.replace("rft", "warm"))
    assert "two stages are named 'warm'" in text
