"""Policies that contradict one another: refused before anything starts, by the command line and by the API alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from synthetic.daemon.command_line import Rftd, Served
from synthetic.daemon.experiment_files import config, overlaid

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "bound 0 with offset 2": (
        {"policy": {"kind": "hard_bound", "max_staleness": 0}, "synchronizer": {"sync_offset": 2}},
        "policy.max_staleness",
        "is 0, but with this synchronizer an experience is up to 2 steps old",
        "set max_staleness to at least 2, or lower the sync intervals or sync_offset",
    ),
    "cooldown without reuse": (
        {"buffer": {"trainer_input": {"experience_buffer": {"replay_buffer": {"reuse_cooldown_time": 5}}}}},
        "buffer.trainer_input.experience_buffer.replay_buffer.reuse_cooldown_time",
        "is set, but replay_buffer.enable is false: experiences are never reused",
        "set replay_buffer.enable to true, or leave it out",
    ),
    "batch larger than capacity": (
        {"buffer": {"trainer_input": {"experience_buffer": {"capacity": 7}}}},
        "buffer.trainer_input.experience_buffer.capacity",
        "is 7, but one step trains 8 experiences: no batch could ever be filled",
        "set it to at least 8, or lower train_batch_size",
    ),
    "group algorithm with repeat_times 1": (
        {"algorithm": {"repeat_times": 1}},
        "algorithm.repeat_times",
        "is 1, but grpo compares",
        "set it to 2 or more, or leave it out for 8",
    ),
    "fixed style with over-rollout": (
        {"explorer": {"over_rollout": {"ratio": 0.5}}},
        "explorer.over_rollout.ratio",
        "continues without the slowest tasks of a step, but sync_style fixed trains on all of them",
        "write ratio: 0, or synchronizer.sync_style: fully_async",
    ),
}


@pytest.mark.parametrize(("change", "field", "says", "fix"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_it_is_refused_with_the_reason_and_the_nearest_valid_setting(
    rftd: Rftd, served: Served, tmp_path: Path, change: dict[str, Any], field: str, says: str, fix: str
) -> None:
    content = overlaid(config(name="contradicts"), change)
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(content))
    for verb in (("config", "check"), ("submit",)):
        said = rftd(*verb, "bad.yaml")
        assert (said.status, said.out) == (2, ""), (verb, said)
        assert f"{field}: {says}" in said.err, said.err
        assert fix in said.err.partition("fix: ")[2], said.err
    (found,) = json.loads(rftd("config", "check", "bad.yaml", "--json").out)["errors"]
    answer = httpx.post(f"{served.url}/v1/experiments", json={"config": content}, timeout=20.0, trust_env=False)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    (part,) = answer.json()["errors"]
    for each in (found, part):
        assert each["field"] == field
        assert each["code"].startswith("RFTD-CFG-")
        assert fix in each["fix"]
    assert rftd("get", "contradicts").status == 3, "nothing of it is kept"
