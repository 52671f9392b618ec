"""The answers that evaluations of a real chat model keep, beside transformers' own on the same weights.

    python -P tests/bench/evaluation_texts.py --model FOLDER [--rows 18] [--steps 3]
    python -P tests/bench/evaluation_texts.py --model FOLDER --file FILE.yaml --reward MODULE.py:CLASS --name REWARD

The model is trained for a few steps of GRPO on sums, and evaluated greedily, at least before the first and after the
last step. `rftd evals --json` gives the answers to every held-out row by each version; transformers loads the model's
folder and each checkpoint as `rftd convert --dtype` writes it, renders the same rows in the model's template, and
answers by `generate`. Explorers of a CPU compute in float32; a folder rounded to another dtype answers otherwise.
Texts, ends, lengths, parts of the reward and the accuracy of both are compared. The status is 1 if one of them differs,
if the first and the last version answer alike, or if `rftd verify` finds something.

An experiment FILE with a reward of its own names `./model`, `./data/train.jsonl` and `./data/test.jsonl`, and has the
system prompt and the answers' length of `greedy_answers.py`; its rows are sums of two numbers below a hundred.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import torch

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

import pretrained_stages
from figures import read_options, tell
from greedy_answers import FORM, MOST_TOKENS, greedy_answers
from synthetic.daemon.scene import Scene
from synthetic.daemon.third_party import install

from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.step import EvalCompleted

TIMEOUT_S: Final = 7200.0
RULE: Final = '''
"""A reward for a bare sum, in two parts."""

import re


def parts(text, truth):
    """One for the right number, and a half for the share of digits."""
    numbers = re.findall(r"[0-9]+", text)
    bare = text.strip()
    right = 1.0 if numbers and numbers[-1] == truth else 0.0
    return {"right": right, "digits": 0.5 * sum(character.isdigit() for character in bare) / max(1, len(bare))}


class BareSum:
    def score(self, response, truth, task, rollout):
        return parts(response, truth)
'''
TEXT: Final = f"""
project: bench
name: sums
checkpoint_root_dir: ./checkpoints
algorithm:
  algorithm_type: grpo
  repeat_times: 4
  kl_loss_fn: none
  optimizer: {{lr: 5.0e-5}}
model: {{model_path: ./model, max_prompt_tokens: 64, max_response_tokens: {MOST_TOKENS}}}
buffer:
  batch_size: 2
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: bare_sum
    taskset: {{name: sums, path: ./data/train.jsonl, format: {FORM}}}
    eval_tasksets:
    - {{name: held-out, path: ./data/test.jsonl, format: {FORM}, rollout_args: {{temperature: 0.0}}}}
explorer: {{eval_interval: 0, max_timeout: 600, rollout_model: {{engine_type: torch, engine_num: 1}}}}
trainer: {{trainer_type: torch, save_interval: 100}}
synchronizer: {{sync_method: checkpoint, sync_style: fully_async}}
"""


def sums(first: int, count: int) -> list[dict[str, str]]:
    """Rows of sums that a small model knows some of, all different."""
    pairs = [(1 + number % 9, 1 + number // 9) for number in range(first, first + count)]
    return [{"question": f"{left}+{right}=", "answer": str(left + right)} for left, right in pairs]


class Answered(NamedTuple):
    """The one attribute of a rollout that rewards of this bench read."""

    finish: str


class Task(NamedTuple):
    """The experiment, its rows, and the class of its reward."""

    text: str
    trained: list[dict[str, str]]
    held_out: list[dict[str, str]]
    name: str
    """The name of the reward in the file."""
    module: str
    rule: str
    kind: str
    """The class in the module."""


def task_of(options: argparse.Namespace) -> Task:
    """The task of the options: the file's, or this bench's own."""
    if options.file is None:
        trained = sums(options.rows, 64)
        return Task(TEXT, trained, sums(0, options.rows), "bare_sum", "bare_sum", RULE, "BareSum")
    chance = random.Random(options.seed)
    held_out = pretrained_stages.sums(pretrained_stages.HELD_OUT_SUMS, chance)
    asked = frozenset(row["question"] for row in held_out)
    trained = pretrained_stages.sums(pretrained_stages.TRAINED_SUMS, chance, asked)
    source, _, kind = options.reward.rpartition(":")
    return Task(
        options.file.read_text(), trained, held_out, options.name, Path(source).stem, Path(source).read_text(), kind
    )


def answered_by_transformers(folder: Path, rows: Sequence[dict[str, str]], reward: Any) -> Iterator[dict[str, Any]]:
    """The answers of transformers' own model, with their rewards."""
    for row, answer in zip(rows, greedy_answers(folder, rows), strict=True):
        finish = "stop" if answer.ended else "length"
        rewards = reward.score(answer.text, row["answer"], None, Answered(finish))
        yield {
            "text": answer.text,
            "finish": finish,
            "tokens": answer.tokens,
            "parts": rewards,
            "right": rewards["right"] == 1.0,
        }


def answered_by_rftd(scene: Scene, name: str, version: int) -> dict[str, Any]:
    """The evaluation of a version, with each of its answers in the order of rows."""
    said = scene.rftd("evals", name, "--version", str(version), "-n", "100", "--json")
    if said.status:
        sys.exit(said.err)
    page: dict[str, Any] = json.loads(said.out)
    return page


def compared(page: dict[str, Any], theirs: Sequence[dict[str, Any]], rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """The figures of a version, and how many of its answers differ from transformers' own."""
    ours = [pair["answer"] for pair in page["items"]]
    differing = [
        row
        for row, (answer, expected) in enumerate(zip(ours, theirs, strict=True))
        if any(answer[name] != value for name, value in expected.items() if name != "parts")
        or any(abs(answer["parts"][name] - value) > 1e-6 for name, value in expected["parts"].items())
    ]
    metrics = page["evaluation"]["metrics"]
    accuracy = fmean(answer["right"] for answer in theirs)
    score = fmean(sum(answer["parts"].values()) for answer in theirs)
    return {
        "version": page["evaluation"]["version"],
        "rows": len(ours),
        "differing_answers": len(differing),
        "first_difference": {"ours": ours[differing[0]], "theirs": theirs[differing[0]]} if differing else None,
        "score": page["evaluation"]["score"],
        "score_of_transformers": score,
        "accuracy": metrics["accuracy/mean"],
        "accuracy_of_transformers": accuracy,
        "exact": sum(answer["text"].strip() == row["answer"] for answer, row in zip(ours, rows, strict=True)),
        "differs": bool(differing)
        or abs(metrics["accuracy/mean"] - accuracy) > 1e-9
        or abs(page["evaluation"]["score"] - score) > 1e-6,
    }


def folders_of(scene: Scene, model: Path, dtype: str) -> dict[int, Path]:
    """The folder of each evaluated version for transformers: the model's, or a checkpoint's after `rftd convert`."""
    saved = {event.step: event for event in scene.events(CheckpointCommitted)}
    folders: dict[int, Path] = {}
    for version in sorted({event.version for event in scene.events(EvalCompleted)}):
        if version == 0:
            folders[version] = model
        elif version in saved:
            checkpoint = Path(saved[version].path)
            converted = scene.rftd("convert", "--checkpoint-dir", str(checkpoint), "--dtype", dtype)
            if converted.status:
                sys.exit(f"{checkpoint} cannot be converted: {converted.err}")
            own = checkpoint / "actor" / "huggingface"
            of_dtype = own.with_name(f"huggingface-{dtype}")
            folders[version] = of_dtype if of_dtype.exists() else own
    return folders


def main() -> int:
    """Prints the figures; 1 if one of them differs."""
    options = read_options(
        __doc__,
        model={"type": Path, "required": True, "help": "the folder of a chat model"},
        rows=(18, "held-out rows"),
        steps=(int, "steps of GRPO; by default 3, or the file's"),
        file=(Path, "an experiment file in place of this bench's own"),
        reward=("", "the file's reward, as MODULE.py:CLASS"),
        name=("", "the name of that reward in the file"),
        seed=(1, "the seed of the rows of the file"),
        dtype=("float32", "the dtype of converted checkpoints"),
    )
    torch.set_num_threads(1)
    task = task_of(options)
    with tempfile.TemporaryDirectory(prefix="rftd-") as scratch:
        folder = Path(scratch)
        install(folder, task.module, task.rule, {"rftd.rewards": {task.name: f"{task.module}:{task.kind}"}})
        sys.path.append(scratch)
        reward = getattr(import_module(task.module), task.kind)()
        scene = Scene(folder, environ={"PYTHONPATH": scratch, "RFTD_PASS_ENV": "PYTHONPATH"})
        (folder / "data").mkdir(exist_ok=True)
        (folder / "model").symlink_to(options.model.resolve())
        for name, rows in (("train", task.trained), ("test", task.held_out)):
            pretrained_stages.write_rows(folder / "data" / f"{name}.jsonl", rows)
        began_s = time.monotonic()
        with scene.host:
            steps = options.steps or (None if options.file else 3)
            name = scene.submit(task.text, *(() if steps is None else (f"buffer.total_steps={steps}",)))
            summary = scene.until_ended(name, TIMEOUT_S).experiment.summary
            if summary.state != "completed":
                sys.exit(f"the run is {summary.state}: {summary.reason}")
            took_s = time.monotonic() - began_s
            folders = folders_of(scene, options.model, options.dtype)
            pages = {version: answered_by_rftd(scene, name, version) for version in folders}
        findings = len(scene.verified().findings)
        figures = [
            compared(pages[version], list(answered_by_transformers(place, task.held_out, reward)), task.held_out)
            for version, place in folders.items()
        ]
    texts = [[pair["answer"]["text"] for pair in page["items"]] for page in pages.values()]
    changed = sum(old != new for old, new in zip(texts[0], texts[-1], strict=True))
    tell(
        {
            "model": options.model.name,
            "file": options.file.name if options.file else None,
            "steps": summary.step,
            "dtype": options.dtype,
            "wall_s": round(took_s, 1),
            "findings": findings,
            "answers_that_training_changed": changed,
            "versions": figures,
        }
    )
    return int(bool(findings) or len(figures) < 2 or not changed or any(figure["differs"] for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
