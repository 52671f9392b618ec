"""A cell of a notebook: a function as the reward is submitted, trains a real model, and its curve rises."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import yaml
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.torch_world import torch_files

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MOST_LINES = 15
CELL = """
from rftd import Client

client = Client()


def digits(response):
    return sum(map(str.isdigit, response)) / 8


run = client.submit("mine.yaml", name="digits", reward=digits)
run.wait(timeout_s=200)
curve = [point.mean for point in run.series("reward")]
"""
STEPS = 30


def experiment_file() -> str:
    """The file of the scene with a tiny model and torch engines, in lockstep."""
    tree = yaml.safe_load(EXPERIMENT)
    del tree["stages"], tree["buffer"]["explorer_input"]["eval_tasksets"], tree["algorithm"]["sample_strategy"]
    del tree["algorithm"]["sample_strategy_args"]
    tree["deterministic"] = True
    tree["algorithm"] |= {"repeat_times": 8, "optimizer": {"lr": 0.01}}
    tree["model"] = {"model_path": "./model", "max_model_len": 24, "max_prompt_tokens": 16, "max_response_tokens": 8}
    tree["buffer"]["total_steps"] = STEPS
    tree["explorer"] = {"runner_per_model": 16, "rollout_model": {"engine_type": "torch", "engine_num": 1}}
    tree["trainer"] = {"trainer_type": "torch", "save_interval": STEPS, "max_idle_steps": 0}
    tree["synchronizer"] = {"sync_method": "checkpoint", "sync_style": "fixed", "sync_interval": 1}
    return yaml.safe_dump(tree)


def test_a_cell_with_a_function_as_the_reward_gives_a_rising_curve(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(CELL.strip().splitlines()) <= MOST_LINES
    scene = Scene(tmp_path_factory.mktemp("cell"))
    torch_files(scene.folder)
    scene.write(experiment_file(), "mine.yaml")
    monkeypatch.chdir(scene.folder)
    monkeypatch.setenv("RFTD_DATA", str(scene.data.root))
    names: dict[str, Any] = {}
    # As a kernel does: functions of a cell have source text.
    linecache.cache["<cell>"] = (len(CELL), None, CELL.splitlines(keepends=True), "<cell>")
    with scene.host:
        exec(compile(CELL, "<cell>", "exec"), names)
        names["client"].close()
    curve = names["curve"]
    assert len(curve) == STEPS
    first, last = curve[: STEPS // 3], curve[-STEPS // 3 :]
    assert sum(last) / len(last) > 2 * sum(first) / len(first), curve
