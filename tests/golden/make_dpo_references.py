"""Writes golden/losses/trl_dpo.json: values, gradients and figures of preferences as TRL's DPOTrainer computes them.

TRL is no dependency. In an environment of its own (made with TRL 1.16.0 and torch on a CPU):

    python -m venv there && there/bin/pip install trl==1.16.0 && there/bin/python make_dpo_references.py

The trainer's own `_compute_loss` runs on given log-probabilities instead of a model's, in float64. Its loss `sigmoid`
knows no label smoothing; `aot` of a single pair is that loss with smoothing, so those cases are means over pairs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from trl.trainer.dpo_trainer import DPOTrainer

PATH = Path(__file__).with_name("losses") / "trl_dpo.json"
METRICS = {
    "chosen_reward": "rewards/chosen",
    "rejected_reward": "rewards/rejected",
    "accuracy_mean": "rewards/accuracies",
}


def fixture(seed: int, pairs: int, drift: float) -> dict[str, Any]:
    """Log-probabilities of policy and reference, chosen and rejected of each pair."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {"policy": [], "reference": []}
    for _ in range(pairs):
        reference = [-np.abs(rng.normal(1.5, 1.0, rng.integers(1, 9))) for _ in range(2)]
        made["reference"].append([part.tolist() for part in reference])
        made["policy"].append([(part + rng.normal(0, drift, len(part))).tolist() for part in reference])
    return made


def by_trl(policy: Any, reference: Any, *, beta: float, smoothing: float, loss_type: str) -> dict[str, Any]:
    """One batch of these pairs, all chosen before all rejected and padded, as the trainer's collator makes it."""
    rows = [pair[0] for pair in policy] + [pair[1] for pair in policy]
    width = max(len(row) for row in rows)
    logps = torch.zeros(len(rows), width, dtype=torch.float64)
    mask = torch.zeros(len(rows), width + 1, dtype=torch.int64)
    for number, row in enumerate(rows):
        logps[number, : len(row)] = torch.tensor(row, dtype=torch.float64)
        mask[number, 1 : len(row) + 1] = 1
    logps.requires_grad_(True)
    still = torch.zeros_like(logps)
    outputs = SimpleNamespace(
        log_probs=logps, entropy=still, mean_logits=still, is_top1=still.bool(), aux_loss=None, log_sum_sq_probs=still
    )
    sums = [[sum(part) for part in pair] for pair in reference]
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": torch.tensor([pair[0] for pair in sums], dtype=torch.float64),
        "ref_rejected_logps": torch.tensor([pair[1] for pair in sums], dtype=torch.float64),
    }
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(device="cpu", gather=lambda value: value, gather_for_metrics=lambda value: value),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[loss_type],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=smoothing,
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    loss = DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    loss.backward()
    count = len(policy)
    gradient = []
    for number, pair in enumerate(policy):
        for side, part in enumerate(pair):
            gradient.append(logps.grad[number + side * count, : len(part)].tolist())
    metrics = {name: trainer._metrics["train"][theirs][0] for name, theirs in METRICS.items()}
    return {"loss": loss.item(), "gradient": gradient, "metrics": metrics}


def smoothed(policy: Any, reference: Any, *, beta: float, smoothing: float) -> dict[str, Any]:
    """The mean over batches of one pair each."""
    each = [
        by_trl([one], [ref], beta=beta, smoothing=smoothing, loss_type="aot")
        for one, ref in zip(policy, reference, strict=True)
    ]
    count = len(each)
    return {
        "loss": sum(one["loss"] for one in each) / count,
        "gradient": [[value / count for value in part] for one in each for part in one["gradient"]],
        "metrics": {name: sum(one["metrics"][name] for one in each) / count for name in METRICS},
    }


def main() -> None:
    """Writes the file."""
    cases = []
    for seed, pairs, drift in ((0, 1, 0.5), (1, 4, 0.5), (2, 6, 8.0), (3, 3, 0.01)):
        for beta, smoothing in ((0.1, 0.0), (0.5, 0.0), (0.1, 0.2)):
            made = fixture(seed, pairs, drift)
            given = {"beta": beta, "smoothing": smoothing}
            found = smoothed(**made, **given) if smoothing else by_trl(**made, **given, loss_type="sigmoid")
            cases.append({"arguments": {"beta": beta, "label_smoothing": smoothing}, **made, **found})
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps({"trl": version("trl"), "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
