"""What one experiment collected, the next one trains on: explored first, trained later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TRAIN = """
project: crash
name: later
mode: train
checkpoint_root_dir: ./checkpoints
algorithm: {algorithm_type: sft}
model: {model_path: fake, max_model_len: 64, max_prompt_tokens: 32}
buffer:
  train_batch_size: 4
  total_steps: 3
  trainer_input:
    experience_buffer:
      name: recorded
      path: ./recorded.jsonl
      format: {prompt_type: raw, prompt_key: prompt, response_key: response}
trainer: {trainer_type: fake, max_idle_steps: 0}
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with scene.host:
        yield scene


def test_what_was_collected_is_trained_by_the_next_experiment(scene: Scene) -> None:
    collecting = scene.submit(EXPERIMENT, *SHORT, "mode=explore", "explorer.collect_only=true")
    page = scene.until_ended(collecting)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    said = scene.rftd("experiences", "rows", collecting)
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert len(rows) == page.experiment.books.produced == 6 * 4 * 4
    assert {row["version"] for row in rows} == {0}
    (scene.folder / "recorded.jsonl").write_text(said.out)
    training = scene.submit(TRAIN)
    page = scene.until_ended(training)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    assert page.experiment.summary.step == 3
    report = scene.verified()
    assert report.clean, report.findings


OFFLINE = """
project: crash
name: offline
mode: train
checkpoint_root_dir: ./checkpoints
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: fake, max_model_len: 64, max_prompt_tokens: 32}
buffer:
  batch_size: 4
  total_epochs: 2
  trainer_input:
    experience_buffer: {storage_type: file, path: ./recorded.jsonl}
trainer: {trainer_type: fake, max_idle_steps: 0}
"""


def test_recorded_rollouts_are_trained_off_policy_by_the_next_experiment(scene: Scene) -> None:
    collecting = scene.submit(EXPERIMENT, *SHORT, "mode=explore", "explorer.collect_only=true")
    scene.until_ended(collecting)
    said = scene.rftd("experiences", "rows", collecting, "--schema", "experience")
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert len(rows) == 6 * 4 * 4
    groups = [row["group"] for row in rows]
    assert groups == sorted(groups, key=groups.index), "rows of a group are neighbours"
    assert [row["rollout"] for row in rows[:4]] == [0, 1, 2, 3]
    assert all(len(row["logprobs"]) == len(row["tokens"]) - row["prompt_tokens"] for row in rows)
    (scene.folder / "recorded.jsonl").write_text(said.out)
    training = scene.submit(OFFLINE)
    page = scene.until_ended(training)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    assert page.experiment.summary.step == 2 * 6
    steps = json.loads(scene.rftd("steps", training, "--metric", "critic/rewards/mean", "--json").out)
    assert len(steps["items"]) == 12, steps
    report = scene.verified()
    assert report.clean, report.findings


def test_a_broken_recorded_rollout_is_refused_at_submission_with_its_line(scene: Scene) -> None:
    (scene.folder / "recorded.jsonl").write_text('{"group": 1, "tokens": [1, 2], "prompt_tokens": 1, "reward": 1}\n')
    (scene.folder / "offline.yaml").write_text(OFFLINE)
    refused = scene.rftd("submit", "offline.yaml")
    assert refused.status == 2, refused
    assert "recorded.jsonl:1" in refused.err, refused
    assert "has no value under 'logprobs'" in refused.err, refused
