"""Writes golden/losses/verl.json: values and gradients of losses and KL functions as verl computes them.

verl is no dependency. In an environment of its own (made with verl 0.9.1 and torch on a CPU):

    python -m venv there && there/bin/pip install verl==0.9.1 torch && there/bin/python make_loss_references.py

Numbers are float64; a gradient is that of the aggregated loss by the log-probabilities.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.workers.config import FSDPActorConfig

PATH = Path(__file__).with_name("losses") / "verl.json"
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("vanilla", {}, "ppo", {}),
    (
        "vanilla",
        {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1.5},
        "ppo",
        {"clip_range_low": 0.2, "clip_range_high": 0.28, "clip_ratio_c": 1.5},
    ),
    ("gspo", {"clip_ratio_low": 0.0003, "clip_ratio_high": 0.0004}, "gspo", {}),
    ("gspo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}, "gspo", {"clip_range": 0.2}),
    ("cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 0.28}, "cispo", {}),
    (
        "cispo",
        {"clip_ratio_low": 0.1, "clip_ratio_high": 4.0},
        "cispo",
        {"clip_range_low": 0.1, "clip_range_high": 4.0},
    ),
    ("sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, "sapo", {}),
    ("sapo", {"tau_pos": 0.5, "tau_neg": 2.0}, "sapo", {"tau_pos": 0.5, "tau_neg": 2.0}),
]
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL = ("k1", "k2", "low_var_kl", "abs")


def fixture(
    name: str, seed: int, drift: float, *, advantages: str = "normal", untrained: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Log-probabilities, masks and advantages of a few responses; those that are `untrained` are masked whole."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 6)
    responses = []
    for length in lengths:
        old = -np.abs(rng.normal(1.5, 1.0, length))
        mask = (rng.random(length) < 0.7).astype(int)
        mask[rng.integers(length)] = 1
        if len(responses) in untrained:
            mask[:] = 0
        responses.append(
            {
                "logprobs": np.minimum(old + rng.normal(0, drift, length), -1e-3).tolist(),
                "old_logprobs": old.tolist(),
                "ref_logprobs": (old + rng.normal(0, drift, length)).tolist(),
                "mask": mask.tolist(),
                "advantage": 0.0 if advantages == "zero" else float(rng.normal()),
            }
        )
    return {"name": name, "responses": responses}


def padded(responses: list[dict[str, Any]], key: str) -> torch.Tensor:
    """[B, T], zeros behind the end of a response"""
    width = max(len(each["mask"]) for each in responses)
    return torch.tensor([each[key] + [0.0] * (width - len(each[key])) for each in responses], dtype=torch.float64)


def trained(values: torch.Tensor, mask: torch.Tensor) -> list[float]:
    """Those of trained tokens, response after response."""
    return values[mask > 0].tolist()


def with_losses(made: dict[str, Any]) -> dict[str, Any]:
    """The fixture with what verl says of it."""
    responses = made["responses"]
    mask = padded(responses, "mask")
    old, ref = padded(responses, "old_logprobs"), padded(responses, "ref_logprobs")
    advantages = torch.tensor([each["advantage"] for each in responses], dtype=torch.float64)[:, None] * mask
    losses, divergences = [], []
    for theirs, config, ours, arguments in CASES:
        for mode in ("seq-mean-token-mean",) if theirs == "sapo" else MODES:
            logprobs = padded(responses, "logprobs").requires_grad_()
            actor = FSDPActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **config)
            loss, _ = get_policy_loss_fn(theirs)(
                old_log_prob=old,
                log_prob=logprobs,
                advantages=advantages,
                response_mask=mask,
                loss_agg_mode=mode,
                config=actor,
            )
            loss.backward()
            assert logprobs.grad is not None
            losses.append(
                {
                    "loss": ours,
                    "arguments": arguments,
                    "loss_agg_mode": mode,
                    "value": loss.item(),
                    "gradient": trained(logprobs.grad, mask),
                }
            )
    for name in KL:
        logprobs = padded(responses, "logprobs").requires_grad_()
        loss = agg_loss(kl_penalty(logprobs, ref, name), mask, "token-mean")
        loss.backward()
        assert logprobs.grad is not None
        divergences.append({"kl": name, "value": loss.item(), "gradient": trained(logprobs.grad, mask)})
    return {**made, "losses": losses, "divergences": divergences, "aggregations": aggregations(responses, mask)}


def aggregations(responses: list[dict[str, Any]], mask: torch.Tensor) -> list[dict[str, Any]]:
    """The log-probabilities themselves, aggregated in each mode; the last one with a factor of its own."""
    found = []
    for mode, factor in [*((mode, None) for mode in MODES), ("seq-mean-token-sum-norm", 40)]:
        logprobs = padded(responses, "logprobs").requires_grad_()
        loss = agg_loss(logprobs, mask, mode, loss_scale_factor=factor)
        loss.backward()
        assert logprobs.grad is not None
        found.append(
            {
                "loss_agg_mode": mode,
                "loss_scale_factor": factor,
                "value": loss.item(),
                "gradient": trained(logprobs.grad, mask),
            }
        )
    return found


if __name__ == "__main__":
    fixtures = [
        fixture("near", 1, 0.05),
        fixture("apart", 2, 0.6),
        fixture("extreme", 3, 6.0),
        fixture("zero-advantage", 4, 0.4, advantages="zero"),
        fixture("untrained", 5, 0.4, untrained=(0, 3)),
    ]
    PATH.parent.mkdir(exist_ok=True)
    content = {"made_by": f"verl {version('verl')}", "fixtures": [with_losses(each) for each in fixtures]}
    PATH.write_text(json.dumps(content, indent=1) + "\n")
