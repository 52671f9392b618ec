"""The demo's last page: what was learned, how, and where to go from here; and the curve as a picture."""

from __future__ import annotations

from pathlib import Path

from rftd.daemon.demo.outcome import LAST_ROLLOUTS, DemoOutcome
from rftd.daemon.output.sparkline import sparkline


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
) -> str:
    """The last page. `folder` holds everything that the demo made; `program` is how rftd was called."""
    rises = outcome.after_grpo - outcome.after_sft
    trained = outcome.last_batch
    right = sum(1 for item in trained if item.reward > 0)
    lines = [
        "",
        f"reward        {sparkline(outcome.rewards, width=60, low=0.0, high=1.0)}",
        f"              {outcome.last_rewards_mean:.3f} over the last {LAST_ROLLOUTS} training rollouts;  "
        f"{folder / 'reward.png'}",
        f"held out      {outcome.after_sft:.3f} after SFT  →  {outcome.after_grpo:.3f} after GRPO  "
        f"({rises:+.3f}; greedy, on sums never trained on)",
        f"staleness     mean {outcome.staleness_mean_versions:.2f}, at most {outcome.staleness_max_versions} "
        "weight versions: explorer and trainer ran at the same time",
        f"speed         {outcome.trained_tokens_per_s:,.0f} trained tokens/s end to end;  {outcome.grpo_steps} GRPO "
        f"steps in {outcome.grpo_s:.1f} s;  {wall_s:.1f} s in all",
        f"last weights  version {outcome.steps}, trained on {len(trained)} experiences ({right} right), among them",
        *(
            f"              {item.experience}  reward {item.reward:.0f}  staleness {item.staleness_versions}"
            for item in trained[:3]
        ),
    ]
    if restarts or outcome.generations > 1:
        lines.append(
            f"survived      {restarts} restarts of the daemon, {outcome.generations - 1} of the trainer; nothing lost"
        )
    lines += [
        "",
        f"The API was at {url}; it stops with the demo. The log is the experiment, so look into it whenever you like:",
        *_again(f"{program} --data {folder / 'data'}", clustered),
        f"  {program} --data {folder / 'data'} get {experiment}",
        "Your own model and data: copy examples/gsm8k.yaml, set model_path and the taskset's path, then",
        f"  {program} serve      and      {program} submit yours.yaml --wait",
    ]
    return "\n".join(lines)


def _again(command: str, clustered: bool) -> tuple[str, ...]:
    """The commands that look into the log afterwards."""
    if clustered:
        return (f"  {command} stack up      starts Kafka and Postgres again, and prints how to serve them; then",)
    return (f"  {command} verify", f"  {command} serve --port 7070      and while it serves")
