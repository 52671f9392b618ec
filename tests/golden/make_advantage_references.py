"""Writes golden/advantages/verl.json: advantages as verl computes them.

verl is no dependency. In an environment of its own (made with verl 0.9.1 and torch on a CPU):

    python -m venv there && there/bin/pip install verl==0.9.1 torch && there/bin/python make_advantage_references.py

Numbers are float64; of a response they are those of its trained tokens.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo import core_algos

PATH = Path(__file__).with_name("advantages") / "verl.json"


def fixture(name: str, groups: list[int], seed: int, *, equal: bool = False, scale: float = 1.0) -> dict[str, Any]:
    """Responses of these numbers of members; tokens between trained ones are masked."""
    rng = np.random.default_rng(seed)
    drawn = np.random.default_rng(seed + 100)
    responses = []
    for group, members in enumerate(groups):
        for _ in range(members):
            length = int(rng.integers(2, 9))
            mask = (rng.random(length) < 0.7).astype(int)
            mask[-1] = 1  # the reward comes with the last trained token
            responses.append(
                {
                    "group": group,
                    "reward": 1.0 if equal else float(scale * rng.normal()),
                    "mask": mask.tolist(),
                    "values": rng.normal(size=length).tolist(),
                    "penalties": (0.1 * rng.normal(size=length) * mask).tolist(),
                    "logprobs": np.log(drawn.uniform(0.05, 0.95, length)).tolist(),
                    "squares": drawn.uniform(0.05, 0.95, length).tolist(),
                }
            )
    return {"name": name, "responses": responses}


def padded(responses: list[dict[str, Any]], key: str) -> torch.Tensor:
    """[B, T], zeros behind the end of a response"""
    width = max(len(each["mask"]) for each in responses)
    return torch.tensor([each[key] + [0.0] * (width - len(each[key])) for each in responses], dtype=torch.float64)


def trained(values: torch.Tensor, mask: torch.Tensor) -> list[list[float]]:
    """Those of trained tokens, by response."""
    return [row[keep > 0].tolist() for row, keep in zip(values, mask, strict=True)]


def with_advantages(made: dict[str, Any]) -> dict[str, Any]:
    """The fixture with what verl says of it."""
    responses = made["responses"]
    mask, values = padded(responses, "mask"), padded(responses, "values")
    index = np.array([each["group"] for each in responses])
    plain = torch.zeros_like(mask)
    for row, each in enumerate(responses):
        plain[row, len(each["mask"]) - 1] = each["reward"]
    penalised = plain - padded(responses, "penalties")
    cases: list[dict[str, Any]] = []

    def add(name: str, arguments: dict[str, Any], found: torch.Tensor, penalties: bool = False) -> None:
        cases.append(
            {"advantage": name, "arguments": arguments, "penalties": penalties, "values": trained(found, mask)}
        )

    add("grpo", {}, core_algos.compute_grpo_outcome_advantage(plain.clone(), mask, index)[0])
    add("rloo", {}, core_algos.compute_rloo_outcome_advantage(plain.clone(), mask, index)[0])
    greedy = [responses[int(np.flatnonzero(index == group)[0])]["reward"] for group in index]
    baselines = torch.tensor(greedy, dtype=torch.float64)
    add("remax", {}, core_algos.compute_remax_outcome_advantage(plain.clone(), baselines, mask)[0])
    for rewards, penalties in ((plain, False), (penalised, True)):
        for gamma, lam in ((1.0, 1.0), (0.9, 0.8)):
            found = core_algos.compute_gae_advantage_return(rewards.clone(), values, mask, gamma, lam)[0]
            add("ppo", {"gamma": gamma, "lam": lam}, found, penalties)
        for gamma in (1.0, 0.9):
            found = core_algos.compute_reinforce_plus_plus_outcome_advantage(
                rewards.clone(), mask, config=SimpleNamespace(gamma=gamma)
            )[0]
            add("reinforceplusplus", {"gamma": gamma}, found, penalties)
        found = core_algos.compute_multi_turn_optimal_token_baseline_advantage(
            rewards.clone(), mask, index, padded(responses, "logprobs"), padded(responses, "squares")
        )[0]
        add("optimal_token_baseline", {}, found, penalties)
    return {**made, "cases": cases}


if __name__ == "__main__":
    fixtures = [
        fixture("groups", [4, 3, 1, 5], 1),
        fixture("single members", [1, 1, 1], 2),
        fixture("zero variance", [4, 4], 3, equal=True),
        fixture("extreme", [4, 2], 4, scale=1e4),
    ]
    PATH.parent.mkdir(exist_ok=True)
    content = {"made_by": f"verl {version('verl')}", "fixtures": [with_advantages(each) for each in fixtures]}
    PATH.write_text(json.dumps(content, indent=1) + "\n")
