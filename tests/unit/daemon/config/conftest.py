"""A small experiment file to change, and a way to load it as a client would."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import Submission, load_text
from rftd.workers.devices.host import Host

Load = Callable[..., Submission]
NO_GPU = Host(name="laptop", no_gpu="nvidia-smi not found", packages={"tinker": "0.38.0"})

SMALL = """
project: p
name: n
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


@pytest.fixture
def small() -> str:
    """An experiment file with nothing wrong in it."""
    return SMALL


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads text as `exp.yaml`, with an environment and a working directory of its own."""

    def call(
        text: str = SMALL,
        overrides: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        host: Host = NO_GPU,
    ) -> Submission:
        text = textwrap.dedent(text)
        return load_text(text, "exp.yaml", overrides=overrides, environ=environ or {}, cwd=tmp_path, host=host)

    return call


@pytest.fixture
def errors(load: Load) -> Callable[..., list[str]]:
    """The texts of every error that a file gives; it must give some."""

    def call(*args: object, **kwargs: object) -> list[str]:
        with pytest.raises(ConfigErrors) as caught:
            load(*args, **kwargs)
        return [str(error) for error in caught.value.errors]

    return call
