"""Experiments to begin with in the studio; `???` marks a field to fill in."""

from __future__ import annotations

from typing import Final

OWN_MODEL: Final = """\
project: first
name: mine
algorithm: {algorithm_type: grpo, repeat_times: 8, optimizer: {lr: 1.0e-6}}
model: {model_path: "???", max_prompt_tokens: 1024, max_response_tokens: 512}
buffer:
  batch_size: 4
  total_steps: 40
  explorer_input:
    taskset:
      path: "???"
      format: {prompt_key: question, response_key: answer}
      default_workflow_type: math_workflow
explorer: {eval_interval: 20}
trainer: {save_interval: 20}
synchronizer: {sync_method: checkpoint, sync_style: fully_async}
"""
"""Experiment file of a GRPO run, with `???` for the paths of model and taskset."""

SUPERVISED: Final = """\
project: first
name: mine-sft
mode: train
algorithm: {algorithm_type: sft, optimizer: {lr: 1.0e-5}}
model: {model_path: "???", max_model_len: 2048}
buffer:
  train_batch_size: 8
  total_steps: 100
  trainer_input:
    experience_buffer:
      name: rows
      path: "???"
      format: {prompt_type: plaintext, prompt_key: question, response_key: answer}
trainer: {save_interval: 50}
"""
"""Experiment file of a supervised run, with `???` for the paths of model and rows."""

PREFERENCES: Final = """\
project: first
name: mine-dpo
mode: train
algorithm: {algorithm_type: dpo, optimizer: {lr: 1.0e-6}}
model: {model_path: "???", max_model_len: 2048}
buffer:
  train_batch_size: 8
  total_steps: 100
  trainer_input:
    experience_buffer:
      name: preferences
      path: "???"
      format: {prompt_type: plaintext, prompt_key: prompt, chosen_key: chosen, rejected_key: rejected}
trainer: {save_interval: 50}
"""
"""Experiment file of a DPO run, with `???` for the paths of model and preferences."""

STARTS: Final = {
    "a model and tasks of your own, by GRPO": OWN_MODEL,
    "rows of your own, by SFT": SUPERVISED,
    "preferences of your own, by DPO": PREFERENCES,
}
"""Experiment files offered as a start, by title."""

ESSENTIAL: Final = {
    "name": "Name",
    "model.model_path": "Model",
    "buffer.explorer_input.taskset.path": "Training tasks",
    "buffer.explorer_input.eval_tasksets": "Held-out tasks",
    "algorithm.algorithm_type": "Algorithm",
    "algorithm.repeat_times": "Answers per task",
    "buffer.batch_size": "Tasks per step",
    "buffer.total_steps": "Steps",
    "algorithm.optimizer.lr": "Learning rate",
    "model.max_response_tokens": "Longest answer",
}
"""Fields of the beginner's form by path, with their titles, in reading order."""
