"""Writes golden/losses/verl_corrections.json: multipliers and masks of corrections as verl's helper computes them.

verl is no dependency. In an environment of its own (made with verl 0.9.1 and torch on a CPU):

    python -m venv there && there/bin/pip install verl==0.9.1 torch && there/bin/python make_correction_references.py

Its k1 criteria look at -log w, ours at w: bounds are given to it as their reciprocals.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from make_loss_references import fixture, padded, trained
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask

PATH = Path(__file__).with_name("losses") / "verl_corrections.json"
WEIGHTS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"rollout_is": "token", "rollout_is_threshold": 2.0}, "tis", {}),
    ({"rollout_is": "token", "rollout_is_threshold": 1.2}, "tis", {"high": 1.2}),
    ({"rollout_is": "sequence", "rollout_is_threshold": 2.0}, "tis", {"level": "sequence"}),
    ({"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}, "icepop", {}),
    ({"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}, "icepop", {"high": 2.0}),
    (
        {"rollout_is": "sequence", "rollout_is_threshold": "0.25_4.0"},
        "icepop",
        {"level": "sequence", "low": 0.25, "high": 4.0},
    ),
    (
        {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": True},
        "tis",
        {"batch_normalize": True},
    ),
    (
        {"rollout_is": "sequence", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": True},
        "tis",
        {"level": "sequence", "batch_normalize": True},
    ),
]
MASKS: list[tuple[str, str | float, str, dict[str, Any]]] = [
    ("token_k1", f"{1 / 1.5}_{1 / 0.8}", "token", {"low": 0.8, "high": 1.5}),
    ("seq_sum_k1", "0.5_2.0", "sequence", {"high": 2.0}),
    ("seq_mean_k1", f"{1 / 1.05}_{1.05}", "geometric", {"high": 1.05}),
    ("token_k2", 0.05, "k2", {"threshold": 0.05, "level": "token"}),
    ("seq_sum_k2", 0.5, "k2", {"threshold": 0.5, "level": "sum"}),
    ("seq_mean_k2", 0.1, "k2", {"threshold": 0.1}),
    ("seq_max_k2", 0.3, "k2", {"threshold": 0.3, "level": "max"}),
    ("token_k3", 0.05, "k3", {"threshold": 0.05, "level": "token"}),
    ("seq_sum_k3", 0.5, "k3", {"threshold": 0.5, "level": "sum"}),
    ("seq_mean_k3", 0.1, "k3", {"threshold": 0.1}),
    ("seq_max_k3", 0.3, "k3", {"threshold": 0.3, "level": "max"}),
]


def with_corrections(made: dict[str, Any]) -> dict[str, Any]:
    """The fixture with what verl says of it; `logprobs` are the proximal ones."""
    responses = made["responses"]
    mask = padded(responses, "mask")
    log_ratio = padded(responses, "logprobs") - padded(responses, "old_logprobs")
    found = []
    for theirs, ours, arguments in WEIGHTS:
        weights, _ = compute_rollout_correction_weights(log_ratio=log_ratio, response_mask=mask, **theirs)
        found.append({"kind": ours, "arguments": arguments, "multiplier": trained(weights, mask)})
    for option, threshold, ours, arguments in MASKS:
        kept, _ = compute_rollout_rejection_mask(log_ratio, mask, option, threshold)
        found.append({"kind": ours, "arguments": arguments, "keep": trained(kept.to(torch.int64), mask)})
    return {**made, "corrections": found}


if __name__ == "__main__":
    fixtures = [fixture("near", 11, 0.05), fixture("apart", 12, 0.4), fixture("extreme", 13, 6.0)]
    content = {"made_by": f"verl {version('verl')}", "fixtures": [with_corrections(each) for each in fixtures]}
    PATH.write_text(json.dumps(content, indent=1) + "\n")
