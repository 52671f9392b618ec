"""`DemoOutcome`: the demo's figures, read from the daemon's API as anybody could."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx
import msgspec

EVALSET = "held-out"
LAST_ROLLOUTS = 256


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """One item of the last batch."""

    experience: str
    reward: float
    staleness_versions: int


class DemoOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's figures."""

    state: str
    reason: str
    rewards: list[float]
    """Mean reward of the batch of each GRPO step."""
    after_sft: float
    """Held-out greedy accuracy."""
    after_grpo: float
    last_rewards_mean: float
    """Mean reward of the last 256 training rollouts."""
    staleness_max_versions: int
    staleness_mean_versions: float
    grpo_s: float
    """The time from the first to the last GRPO step."""
    trained_tokens_per_s: float
    """Response tokens that took part in a GRPO step, over that time: rollout, planning and training included."""
    steps: int
    grpo_steps: int
    last_batch: list[Trained]
    generations: int


def read_outcome(url: str, experiment: str) -> DemoOutcome:
    """The outcome so far of an experiment. Raises httpx.HTTPError if the daemon does not answer."""
    with httpx.Client(base_url=url, timeout=30.0, trust_env=False) as client:
        page = _get(client, f"/v1/experiments/{experiment}")
        steps = _steps(client, experiment)
        last_version = max((step["step"] for step in steps), default=0)
        items = _get(client, f"/v1/experiments/{experiment}/batches/{last_version}")["items"] if steps else []
    detail = page["experiment"]
    scores = {score["version"]: score["score"] or 0.0 for score in page["evals"] if score["taskset"] == EVALSET}
    grpo = [step for step in steps if step["stage"] == len(detail["stages"]) - 1]
    last = grpo[-max(1, LAST_ROLLOUTS // max(1, grpo[-1]["items"])) :] if grpo else []
    seconds = (_moment(grpo[-1]) - _moment(grpo[0])) if len(grpo) > 1 else 0.0
    return DemoOutcome(
        state=detail["summary"]["state"],
        reason=detail["summary"]["reason"] or "",
        rewards=[step["reward_mean"] or 0.0 for step in grpo],
        after_sft=scores.get(min(scores, default=-1), 0.0),
        after_grpo=scores.get(max(scores, default=-1), 0.0),
        last_rewards_mean=sum(step["reward_mean"] or 0.0 for step in last) / len(last) if last else 0.0,
        staleness_max_versions=max((step["staleness_max"] or 0 for step in grpo), default=0),
        staleness_mean_versions=sum(step["staleness_mean"] or 0.0 for step in grpo) / len(grpo) if grpo else 0.0,
        grpo_s=seconds,
        # From the second step on: the time before the first one's end is not in `grpo_s`.
        trained_tokens_per_s=sum(step["tokens"] for step in grpo[1:]) / seconds if seconds else 0.0,
        steps=len(steps),
        grpo_steps=len(grpo),
        last_batch=[
            Trained(
                experience=item["experience"] or "",
                reward=item["reward"] or 0.0,
                staleness_versions=item["staleness_versions"] or 0,
            )
            for item in items
        ],
        generations=detail["generations"],
    )


def _moment(step: Any) -> float:
    return datetime.fromisoformat(step["completed_at"]).timestamp()


def _get(client: httpx.Client, path: str, **parameters: Any) -> Any:
    answer = client.get(path, params=parameters)
    answer.raise_for_status()
    return answer.json()


def _steps(client: httpx.Client, experiment: str) -> list[Any]:
    """Every step, page by page."""
    found: list[Any] = []
    first: int | None = 0
    while first is not None:
        page = _get(client, f"/v1/experiments/{experiment}/steps", first=first)
        found += page["items"]
        first = page["next"]
    return found
