"""Experiment files as a client would send them: the smallest complete one, and one laid over another."""

from __future__ import annotations

from typing import Any

import yaml

TEXT = """\
project: p
name: mine
checkpoint_root_dir: /c
algorithm:
  algorithm_type: grpo
  repeat_times: 4
model:
  model_path: /m
  max_model_len: 64
buffer:
  batch_size: 2
  total_steps: 5
  explorer_input:
    taskset:
      path: /t.jsonl
      default_workflow_type: math_workflow
"""
"""The smallest experiment file that is complete; its paths are absolute and need not exist for a check."""


def config(**changes: Any) -> dict[str, Any]:
    """`TEXT` is parsed, and `changes` replace its sections."""
    return {**yaml.safe_load(TEXT), **changes}


def overlaid(below: Any, above: Any) -> Any:
    """`above` wins over `below` section by section; a list replaces the whole list below it."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: overlaid(below.get(key), value) for key, value in above.items()}}
    return above
