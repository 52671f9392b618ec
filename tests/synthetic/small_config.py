"""The smallest experiment file that is complete: its paths are absolute and need not exist to be checked."""

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


def config(**changes: Any) -> dict[str, Any]:
    """The file's content, as a client would send it."""
    return {**yaml.safe_load(TEXT), **changes}
