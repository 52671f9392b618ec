"""The overrides and the tiny model that put `scene.EXPERIMENT` on the torch engines."""

from __future__ import annotations

from pathlib import Path

from rftd.workers.models.tiny_model import make_tiny_model

TORCH = (
    "model.model_path=./model",
    "model.max_model_len=32",
    "model.max_prompt_tokens=16",
    "model.max_response_tokens=8",
    "explorer.rollout_model={engine_type: torch, engine_num: 2}",
    "explorer.runner_per_model=8",
    "explorer.max_timeout=60",
    "explorer.eval_interval=1000",
    "trainer={trainer_type: torch, save_interval: 3, max_idle_steps: 0}",
    "algorithm.optimizer={lr: 0.003, lr_scheduler_type: cosine}",
)
"""Overrides that put `scene.EXPERIMENT` on real engines; asynchronous, with two explorers."""


def torch_files(folder: Path, *, seed: int = 3) -> None:
    """A tiny model is written to the place that the overrides name."""
    make_tiny_model(folder / "model", seed=seed, hidden_size=32, heads=2)
