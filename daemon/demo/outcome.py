"""`DemoOutcome`: the demo's figures, read from the public API; the last page, and the curve as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec

from rftd.daemon.cli.output.quantity import short, sparkline
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views import experiences, text

EVALSET = "held-out"
"""Name of the demo's held-out taskset."""
LAST_ROLLOUTS = 256
"""Number of newest training rollouts in `last_rewards_mean`."""
_RIGHT = 0.5
"""Threshold between the rewards of wrong and right answers, 0 and 1."""


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """One experience of the last training batch, with reward and staleness."""

    experience: str
    """Id of the experience."""
    reward: float
    """Reward of the experience."""
    staleness_versions: int
    """Weight versions between sampling and training."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the model as text, with the question and the right answer."""

    experience: str
    """Id of the experience."""
    question: str
    """Question, as text."""
    answer: str
    """Answer of the model, as text."""
    truth: str
    """The right answer."""
    right: bool
    """True if the answer is right."""
    version: int
    """Weight version behind the answer."""


class DemoOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's figures: rewards, held-out accuracy, staleness, speed, and example answers."""

    state: str
    """State of the experiment."""
    reason: str
    """Reason of the state, in words."""
    rewards: list[float]
    """Mean batch reward of each GRPO step."""
    after_sft: float
    """Held-out accuracy of greedy answers after the SFT stage."""
    after_grpo: float
    """Held-out accuracy of greedy answers after the GRPO stage."""
    last_rewards_mean: float
    """Mean reward of the last 256 training rollouts."""
    staleness_max_versions: int
    """Largest staleness of the experiences trained by GRPO, in weight versions."""
    staleness_mean_versions: float
    """Mean staleness of the experiences trained by GRPO, in weight versions."""
    grpo_s: float
    """Time from the first to the last GRPO step."""
    trained_tokens_per_s: float
    """Response tokens trained by GRPO per second of `grpo_s`: rollout, planning and training included."""
    steps: int
    """Number of trained steps of all stages."""
    grpo_steps: int
    """Number of trained steps of the GRPO stage."""
    last_batch: list[Trained]
    """Experiences of the last training batch."""
    generations: int
    """Number of trainer generations; more than one after restarts."""
    examples: list[Example] = []
    """The newest right and the newest wrong answer of the training rollouts."""


def read_examples(client: Client, experiment: str) -> list[Example]:
    """Returns the newest right and the newest wrong answer, if available."""
    shown_examples: list[Example] = []
    for right in (True, False):
        bounds = {"min_reward": _RIGHT} if right else {"max_reward": _RIGHT}
        listed = client.ask(experiences.experiences, name=experiment, order="newest", limit=1, **bounds).value
        for row in listed.items:
            shown = client.ask(text.experience_text, name=experiment, experience=row.id).value
            shown_examples += [
                Example(
                    experience=row.id,
                    question=turn.bare_prompt,
                    answer=turn.answer,
                    truth=shown.truth or "",
                    right=right,
                    version=row.newest_version,
                )
                for turn in shown.rollout.turns
            ]
    return shown_examples


def read_outcome(url: str, headers: Mapping[str, str], experiment: str, *, timeout_s: float) -> DemoOutcome:
    """Returns the current outcome of an experiment. Raises httpx.HTTPError if the daemon does not answer."""
    with httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False) as client:
        page = _get(client, f"/v1/experiments/{experiment}")
        steps = _steps(client, experiment)
        last_version = max((step["step"] for step in steps), default=0)
        batch_rows = _get(client, f"/v1/experiments/{experiment}/batches/{last_version}")["items"] if steps else []
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
        # From the second step on, because `grpo_s` does not include the time before the first step's end.
        trained_tokens_per_s=sum(step["tokens"] for step in grpo[1:]) / seconds if seconds else 0.0,
        steps=len(steps),
        grpo_steps=len(grpo),
        last_batch=[
            Trained(
                experience=row["experience"] or "",
                reward=row["reward"] or 0.0,
                staleness_versions=row["staleness_versions"] or 0,
            )
            for row in batch_rows
        ],
        generations=detail["generations"],
    )


def _moment(step: Any) -> float:
    """Returns the completion of a step in seconds since 1970."""
    return datetime.fromisoformat(step["completed_at"]).timestamp()


def _get(client: httpx.Client, path: str, **parameters: Any) -> Any:
    """Returns the JSON answer of a GET request. Raises httpx.HTTPError for an error status."""
    answer = client.get(path, params=parameters)
    answer.raise_for_status()
    return answer.json()


def _steps(client: httpx.Client, experiment: str) -> list[Any]:
    """Returns every step, read page by page."""
    rows: list[Any] = []
    first: int | None = 0
    while first is not None:
        page = _get(client, f"/v1/experiments/{experiment}/steps", first=first)
        rows += page["items"]
        first = page["next"]
    return rows


def draw_curve(outcome: DemoOutcome, path: Path) -> None:
    """Writes the reward curve as a PNG. Imports matplotlib, which takes about a second."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), dpi=120)
    steps = range(1, len(outcome.rewards) + 1)
    axes.plot(steps, outcome.rewards, color="#2563eb", linewidth=1.2, label="mean reward of each batch")
    axes.axhline(outcome.after_sft, color="#9ca3af", linestyle="--", linewidth=1, label="held out, after SFT")
    axes.axhline(outcome.after_grpo, color="#059669", linestyle="--", linewidth=1, label="held out, after GRPO")
    axes.set(xlabel="GRPO step", ylabel="accuracy", ylim=(0, 1.02), title="A tiny model learns to add")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)
    axes.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def text_of(
    outcome: DemoOutcome,
    *,
    program: str,
    url: str,
    experiment: str,
    folder: Path,
    wall_s: float,
    restarts: int,
    clustered: bool = False,
    stays: bool = False,
) -> str:
    """Returns the last page; `stays` is True for a daemon serving until an interrupt.

    `folder` contains all files of the demo; `program` is rftd's name on the command line.
    """
    rises = outcome.after_grpo - outcome.after_sft
    trained = outcome.last_batch
    right = sum(1 for experience in trained if experience.reward > 0)
    lines = [
        "",
        f"reward        {sparkline(outcome.rewards, width=60, low=0.0, high=1.0)}",
        f"              {outcome.last_rewards_mean:.3f} over the last {LAST_ROLLOUTS} training rollouts; "
        f"{folder / 'reward.png'}",
        f"held out      {outcome.after_sft:.3f} after SFT, {outcome.after_grpo:.3f} after GRPO ({rises:+.3f}), "
        "on unseen sums",
        f"staleness     mean {outcome.staleness_mean_versions:.2f}, at most {outcome.staleness_max_versions} weight "
        "versions: neither side waited",
        f"speed         {outcome.trained_tokens_per_s:,.0f} trained tokens/s; {outcome.grpo_steps} GRPO steps in "
        f"{outcome.grpo_s:.1f} s; {wall_s:.1f} s in all",
        f"last weights  version {outcome.steps}, trained on {len(trained)} experiences, {right} of them right",
        *map(_example, outcome.examples),
    ]
    if restarts or outcome.generations > 1:
        lines.append(
            f"survived      {restarts} restarts of the daemon, {outcome.generations - 1} of the trainer; nothing lost"
        )
    command = f"{program} --data {folder / 'data'}"
    again = _again(command, experiment, outcome, clustered)
    lines += (
        ["", f"The API at {url} has stopped; the log remains. Inspect it with", *again]
        if not stays
        else [
            "",
            f"The daemon at {url} stays until you press Ctrl-C. In another terminal,",
            f"  {command} open",
            "opens its page, and this shows the same:",
            *_looks(command, experiment, outcome),
        ]
    )
    lines += [
        "Your own model and data: copy examples/mine.yaml, set model_path and the paths",
        "of the tasksets, and run",
        f"  {program} serve",
        f"  {program} submit mine.yaml --wait",
    ]
    return "\n".join(lines)


def _example(example: Example) -> str:
    """Returns an answer in one line, with the truth if the answer is wrong."""
    wrong = "" if example.right else f"; correct is {example.truth}" if example.truth else ""
    label = "right answer" if example.right else "wrong answer"
    return f"{label:<14}{example.question}{example.answer}{wrong}   (by version {example.version})"


def _again(command: str, experiment: str, outcome: DemoOutcome, clustered: bool) -> Iterator[str]:
    """Yields the commands for inspecting the log afterwards."""
    if clustered:
        yield f"  {command} stack up"
        yield "which starts Kafka and Postgres again, and prints how to serve them; then"
    else:
        yield f"  {command} verify"
        yield f"  {command} serve --port 7070"
        yield "and, while it is running, in another terminal"
    yield from _looks(command, experiment, outcome)


def _looks(command: str, experiment: str, outcome: DemoOutcome) -> Iterator[str]:
    """Yields the commands showing the run while a daemon serves the log."""
    yield f"  {command} get {experiment}"
    for example in outcome.examples[-1:]:
        yield f"  {command} experiences show {experiment} {short(example.experience)}"
