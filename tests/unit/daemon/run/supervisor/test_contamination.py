"""Held-out rows that are trained on as well are named when an experiment is submitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.supervisor import contamination
from rftd.daemon.run.supervisor.preflight import preflight

TEXT = """
project: p
name: n
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: fake, max_model_len: 64, max_prompt_tokens: 32}
buffer:
  batch_size: 4
  total_steps: 2
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: exact_match_reward
    taskset: {name: train, path: train.jsonl}
    eval_tasksets: [{name: held, path: held.jsonl}]
explorer: {rollout_model: {engine_type: fake}}
trainer: {trainer_type: fake}
"""


def rows(path: Path, prompts: list[Any]) -> None:
    path.write_text("".join(json.dumps({"prompt": prompt, "response": "r"}) + "\n" for prompt in prompts))


def warnings_of(folder: Path, text: str = TEXT) -> list[str]:
    spec = preflight(load_text(text, "exp.yaml", cwd=folder).spec)
    return [warning for warning in spec.warnings if "memorized" in warning]


def test_rows_of_both_are_named_whatever_their_case_and_space(tmp_path: Path) -> None:
    rows(tmp_path / "train.jsonl", ["one", "two", "What is  3?", [{"role": "user", "content": "four"}]])
    rows(tmp_path / "held.jsonl", ["five", "what is 3?\n", "four", "six"])
    [warning] = warnings_of(tmp_path)
    assert warning.startswith(
        "2 of the 4 rows of held-out 'held' have the prompt of a row that is trained on: row 1 is row 2 of 'train'"
    )


def test_rows_of_neither_are_none(tmp_path: Path) -> None:
    rows(tmp_path / "train.jsonl", ["one", "two"])
    rows(tmp_path / "held.jsonl", ["three", "one and two"])
    assert warnings_of(tmp_path) == []


def test_rows_of_an_earlier_stage_count(tmp_path: Path) -> None:
    rows(tmp_path / "train.jsonl", ["one", "two"])
    rows(tmp_path / "held.jsonl", ["three", "four"])
    (tmp_path / "sft.jsonl").write_text(json.dumps({"prompt": "four", "response": "4"}) + "\n")
    first = """
stages:
- stage_name: warmup
  mode: train
  algorithm: {algorithm_type: sft}
  buffer:
    train_batch_size: 1
    total_steps: 1
    trainer_input: {experience_buffer: {name: shown, path: sft.jsonl, format: {prompt_type: plaintext}}}
- stage_name: rft
"""
    [warning] = warnings_of(tmp_path, TEXT + first)
    assert "row 1 is row 0 of 'shown'" in warning


def test_of_large_files_it_is_said_that_some_were_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "_TRAINED", 2)
    rows(tmp_path / "train.jsonl", ["one", "two", "three", "four"])
    rows(tmp_path / "held.jsonl", ["three"])
    [warning] = warnings_of(tmp_path)
    assert "trained on, of the compared rows: row 0 is row 2" in warning
