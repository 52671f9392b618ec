"""The answers that evaluations of a real chat model keep, beside transformers' own on the same weights.

    python -P tests/bench/evaluation_texts.py --model FOLDER [--rows 18] [--steps 3]

The model is trained for a few steps of GRPO on sums, and evaluated greedily before the first and after the last.
`rftd evals --json` gives the answers to every held-out row by both versions; transformers loads the model's folder and
`actor/huggingface` of the last checkpoint, renders the same rows in the model's template, and answers by `generate`.
Texts, ends, lengths, parts of the reward and the accuracy of both are compared. The status is 1 if one of them differs,
if the two versions answer alike, or if `rftd verify` finds something.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

sys.path.append(str(Path(__file__).parents[1]))

from synthetic.daemon.scene import Scene
from synthetic.daemon.third_party import install

sys.path.insert(0, str(Path(__file__).parent))

from figures import tell
from greedy_answers import FORM, MOST_TOKENS, greedy_answers

from rftd.streams.events.checkpoint import CheckpointCommitted

TIMEOUT_S: Final = 3600.0
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
    def score(self, response, truth, task):
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
model: {{model_path: MODEL, max_prompt_tokens: 64, max_response_tokens: {MOST_TOKENS}}}
buffer:
  batch_size: 2
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: bare_sum
    taskset: {{name: sums, path: ./train.jsonl, format: {FORM}}}
    eval_tasksets:
    - {{name: held-out, path: ./held_out.jsonl, format: {FORM}, rollout_args: {{temperature: 0.0}}}}
explorer: {{eval_interval: 0, max_timeout: 600, rollout_model: {{engine_type: torch, engine_num: 1}}}}
trainer: {{trainer_type: torch, save_interval: 100}}
synchronizer: {{sync_method: checkpoint, sync_style: fully_async}}
"""


def sums(first: int, count: int) -> list[dict[str, str]]:
    """Rows of sums that a small model knows some of, all different."""
    pairs = [(1 + number % 9, 1 + number // 9) for number in range(first, first + count)]
    return [{"question": f"{left}+{right}=", "answer": str(left + right)} for left, right in pairs]


def answered_by_transformers(folder: Path, rows: Sequence[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """The answers of transformers' own model, with their rewards."""
    from bare_sum import parts

    for row, answer in zip(rows, greedy_answers(folder, rows), strict=True):
        rewards = parts(answer.text, row["answer"])
        yield {
            "text": answer.text,
            "finish": "stop" if answer.ended else "length",
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


def compared(page: dict[str, Any], theirs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a version, and how many of its answers differ from transformers' own."""
    ours = [pair["answer"] for pair in page["items"]]
    differing = [
        row
        for row, (answer, other) in enumerate(zip(ours, theirs, strict=True))
        if any(answer[name] != value for name, value in other.items() if name != "parts")
        or any(abs(answer["parts"][name] - value) > 1e-6 for name, value in other["parts"].items())
    ]
    metrics = page["evaluation"]["metrics"]
    accuracy = sum(other["right"] for other in theirs) / len(theirs)
    return {
        "version": page["evaluation"]["version"],
        "rows": len(ours),
        "differing_answers": len(differing),
        "first_difference": {"ours": ours[differing[0]], "theirs": theirs[differing[0]]} if differing else None,
        "accuracy": metrics["accuracy/mean"],
        "accuracy_of_transformers": accuracy,
        "differs": bool(differing) or abs(metrics["accuracy/mean"] - accuracy) > 1e-9,
    }


def main() -> int:
    """Prints the figures; 1 if one of them differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of a chat model")
    parser.add_argument("--rows", type=int, default=18, help="held-out rows")
    parser.add_argument("--steps", type=int, default=3, help="steps of GRPO")
    options = parser.parse_args()
    torch.set_num_threads(1)
    held_out = sums(0, options.rows)
    with tempfile.TemporaryDirectory(prefix="rftd-") as scratch:
        folder = Path(scratch)
        install(folder, "bare_sum", RULE, {"rftd.rewards": {"bare_sum": "bare_sum:BareSum"}})
        sys.path.append(scratch)
        scene = Scene(folder, environ={"PYTHONPATH": scratch, "RFTD_PASS_ENV": "PYTHONPATH"})
        for name, rows in (("train", sums(options.rows, 64)), ("held_out", held_out)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        began_s = time.monotonic()
        with scene.host:
            text = TEXT.replace("MODEL", str(options.model.resolve()))
            name = scene.submit(text, f"buffer.total_steps={options.steps}")
            summary = scene.until_ended(name, TIMEOUT_S).experiment.summary
            if summary.state != "completed":
                sys.exit(f"the run is {summary.state}: {summary.reason}")
            pages = [answered_by_rftd(scene, name, version) for version in (0, options.steps)]
        took_s = time.monotonic() - began_s
        findings = len(scene.verified().findings)
        checkpoint = max(scene.events(CheckpointCommitted), key=lambda event: event.step)
        folders = (options.model, Path(checkpoint.path) / "actor" / "huggingface")
        figures = [
            compared(page, list(answered_by_transformers(place, held_out)))
            for page, place in zip(pages, folders, strict=True)
        ]
    before, after = ([pair["answer"]["text"] for pair in page["items"]] for page in pages)
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    tell(
        {
            "model": options.model.name,
            "steps": options.steps,
            "wall_s": round(took_s, 1),
            "findings": findings,
            "answers_that_training_changed": changed,
            "versions": figures,
        }
    )
    return int(bool(findings) or not changed or any(figure["differs"] for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
