"""`deterministic: true` on the torch engines: whatever dies, and when, the weights of every step are the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

DEATHS = (
    ("checkpoint.after_files", 1),
    ("trainer.before_step_append", 4),
    ("planner.after_append", 4),
    ("explorer.before_append", 3),
)
"""The trainer's beside a checkpoint without its event, and two steps after one; the daemon's; an explorer's.

Each is due early in its process's life: a process that the others' deaths end too begins to count again.
"""
SMALL = (
    "buffer.batch_size=2",
    "buffer.total_steps=6",
    "stages.0.buffer.total_steps=2",
    "explorer.rollout_model={engine_type: torch, engine_num: 1}",
    "trainer={trainer_type: torch, save_interval: 2, ppo_epochs: 2, ppo_mini_batch_size: 2, shuffle: true}",
    "trainer.max_idle_steps=0",
)
"""Several optimizer steps per batch: what a batch began with, and the order of each epoch, are found again too."""


@pytest.mark.e2e
@pytest.mark.slow
def test_a_deterministic_run_with_four_deaths_makes_the_weights_of_one_without(tmp_path: Path) -> None:
    from synthetic.daemon.torch_world import TORCH, torch_files
    from synthetic.deaths.armed import Armed, armed_run
    from synthetic.deaths.killing import IN_ORDER

    def run(name: str, deaths: tuple[tuple[str, int], ...]) -> Armed:
        return armed_run(tmp_path / name, deaths, *TORCH, *IN_ORDER, *SMALL)

    for name in ("untouched", "killed"):
        torch_files(tmp_path / name)
    with ThreadPoolExecutor(2) as both:
        untouched, killed = both.map(run, ("untouched", "killed"), ((), DEATHS))
    assert untouched.broken == []
    assert killed.broken == []
    assert killed.spared == []
    assert len(untouched.weights) == 8
    assert len(set(untouched.weights)) == 8
    assert all(untouched.weights)
    assert killed.weights == untouched.weights
