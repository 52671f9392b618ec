"""A real pre-trained chat model through SFT and GRPO: its held-out figures by rftd and by transformers alone.

    python -P tests/bench/pretrained_stages.py --model FOLDER [--sft 8] [--grpo 40] [--seed 1]

The model learns to answer sums bare. Evaluations are greedy, before the first step of GRPO, every twenty steps and at
the end. Each checkpoint that an evaluation was of is converted by `rftd convert`; transformers loads it, renders the
same rows in the model's template, answers them by `generate`, and the answers are scored by the same rule. The status
is 1 if a figure differs, or if the run or `rftd verify` says that something is wrong.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from greedy_answers import FORM, MOST_TOKENS, greedy_answers
from synthetic.daemon.scene import Scene
from synthetic.daemon.third_party import install

from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.step import EvalCompleted, StepCompleted

TRAINED_SUMS: Final = 128
HELD_OUT_SUMS: Final = 24
TIMEOUT_S: Final = 7200.0
ROUNDING: Final = 1e-6
"""Scores are means of sums of a few digits; an answer that differs moves one by a hundredth."""
RULE: Final = '''
"""A reward for a bare sum: 2 for the right number and nothing else."""

import re


def score(text, truth, ended):
    """One for the right number, a half for an end, and a half for the share of digits."""
    numbers = re.findall(r"[0-9]+", text)
    bare = text.strip()
    right = 1.0 if numbers and numbers[-1] == truth else 0.0
    digits = sum(character.isdigit() for character in bare) / max(1, len(bare))
    return right + 0.5 * ended + 0.5 * digits


class BareSum:
    def score(self, response, truth, task, rollout):
        return score(response, truth, rollout.finish == "stop")
'''
TEXT: Final = f"""
project: bench
name: sums
checkpoint_root_dir: ./checkpoints
algorithm:
  algorithm_type: grpo
  repeat_times: 8
  kl_loss_fn: none
  optimizer: {{lr: 2.0e-5}}
model: {{model_path: MODEL, max_prompt_tokens: 64, max_response_tokens: {MOST_TOKENS}}}
buffer:
  batch_size: 4
  explorer_input:
    taskset:
      name: sums
      path: ./train.jsonl
      format: {FORM}
      default_workflow_type: simple_workflow
      default_reward_fn_type: bare_sum
      data_selector: {{selector_type: shuffle}}
    eval_tasksets:
    - name: held-out
      path: ./held_out.jsonl
      format: {FORM}
      rollout_args: {{temperature: 0.0}}
      default_workflow_type: simple_workflow
      default_reward_fn_type: bare_sum
explorer: {{eval_interval: 20, max_timeout: 600, rollout_model: {{engine_type: torch, engine_num: 1}}}}
trainer: {{trainer_type: torch, save_interval: 20}}
synchronizer: {{sync_method: checkpoint, sync_style: fully_async}}
stages:
- stage_name: imitate
  mode: train
  algorithm: {{algorithm_type: sft, optimizer: {{lr: 1.0e-5}}}}
  buffer:
    train_batch_size: 16
    trainer_input:
      experience_buffer: {{name: sums, path: ./train.jsonl, format: {FORM}}}
- stage_name: rft
"""


def sums(count: int, chance: random.Random, without: frozenset[str] = frozenset()) -> list[dict[str, str]]:
    """Rows of sums of two numbers below a hundred, each once."""
    rows: dict[str, str] = {}
    while len(rows) < count:
        left = chance.randrange(100)
        right = chance.randrange(100)
        question = f"{left}+{right}="
        if question not in without:
            rows[question] = str(left + right)
    return [{"question": question, "answer": answer} for question, answer in rows.items()]


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Writes JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def answered_by_transformers(folder: Path, rows: Sequence[Mapping[str, str]], score: Any) -> dict[str, float]:
    """The figures of transformers' own model."""
    total = 0.0
    exact = 0
    for row, answer in zip(rows, greedy_answers(folder, rows), strict=True):
        total += score(answer.text, row["answer"], answer.ended)
        exact += answer.text.strip() == row["answer"]
    return {"score": total / len(rows), "exact": exact}


def compared(scene: Scene, held_out: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """The figures of each evaluated version that has a checkpoint: the run's and transformers' own."""
    from bare_sum import score

    saved = {event.step: event for event in scene.events(CheckpointCommitted)}
    figures = []
    for event in sorted(scene.events(EvalCompleted), key=lambda event: event.version):
        if event.version not in saved:
            continue
        checkpoint = Path(saved[event.version].path)
        converted = scene.rftd("convert", "--checkpoint-dir", str(checkpoint))
        if converted.status:
            sys.exit(f"{checkpoint} cannot be converted: {converted.err}")
        theirs = answered_by_transformers(checkpoint / "actor" / "huggingface", held_out, score)
        figures.append(
            {
                "version": event.version,
                "rftd": event.score,
                "transformers": theirs["score"],
                "exact": theirs["exact"],
                "differs": abs(event.score - theirs["score"]) > ROUNDING,
            }
        )
    return figures


def rewards_of(scene: Scene) -> dict[str, float]:
    """The mean reward of the first five batches of rollouts and of the last five."""
    figures = (event.metrics for event in scene.events(StepCompleted))
    means = [figure["critic/rewards/mean"] for figure in figures if "critic/rewards/mean" in figure]
    return {"first": round(fmean(means[:5]), 3), "last": round(fmean(means[-5:]), 3)}


def main() -> int:
    """Prints the figures; 1 if one of them differs."""
    options = read_options(
        __doc__,
        model={"type": Path, "required": True, "help": "the folder of a chat model"},
        sft=(8, "steps of SFT"),
        grpo=(40, "steps of GRPO"),
        seed=1,
    )
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    held_out = sums(HELD_OUT_SUMS, chance)
    trained = sums(TRAINED_SUMS, chance, frozenset(row["question"] for row in held_out))
    with tempfile.TemporaryDirectory(prefix="rftd-") as scratch:
        folder = Path(scratch)
        install(folder, "bare_sum", RULE, {"rftd.rewards": {"bare_sum": "bare_sum:BareSum"}})
        sys.path.append(scratch)
        scene = Scene(folder, environ={"PYTHONPATH": scratch, "RFTD_PASS_ENV": "PYTHONPATH"})
        write_rows(folder / "train.jsonl", trained)
        write_rows(folder / "held_out.jsonl", held_out)
        began_s = time.monotonic()
        with scene.host:
            name = scene.submit(
                TEXT.replace("MODEL", str(options.model.resolve())),
                f"seed={options.seed}",
                f"stages[0].buffer.total_steps={options.sft}",
                f"buffer.total_steps={options.grpo}",
            )
            summary = scene.until_ended(name, TIMEOUT_S).experiment.summary
        took_s = time.monotonic() - began_s
        if summary.state != "completed":
            sys.exit(f"the run is {summary.state}: {summary.reason}")
        findings = len(scene.verified().findings)
        figures = compared(scene, held_out)
        rewards = rewards_of(scene)
    tell(
        {
            "model": options.model.name,
            "sft_steps": options.sft,
            "grpo_steps": options.grpo,
            "wall_s": round(took_s, 1),
            "findings": findings,
            "held_out": figures,
            "reward_of_batches": rewards,
        }
    )
    return int(bool(findings) or len(figures) < 2 or any(figure["differs"] for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
