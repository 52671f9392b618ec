"""A forecast as a picture: throughput, staleness, busy shares, trained lengths; one colour per policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rftd.workers.control.simulator.outcome import SimulationOutcome
from rftd.workers.control.simulator.report import Report

_COLORS: Final = ("#2563eb", "#059669", "#d97706", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#57534e")
"""Colours of the policies, in order."""
_GREY: Final = "#9ca3af"
"""Colour of synchronous training and of generated lengths."""


def draw(report: Report, path: Path) -> None:
    """Writes the picture in the format of its suffix (PNG, SVG, PDF). Imports matplotlib, taking about a second."""
    import matplotlib

    # No window: the verb may run on a machine without a display.
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = len(report.runs) + 2
    figure, panels = plt.subplots(2, 2, figsize=(12, 7 + 0.15 * rows), dpi=110)
    (throughput, staleness), (busy, lengths) = panels
    _draw_throughput(throughput, report)
    for index, run in enumerate(report.runs):
        color = _COLORS[index % len(_COLORS)]
        _draw_staleness(staleness, run, color, offset=index, of=len(report.runs))
        _draw_busy_shares(busy, run, report.system.rollout_units * report.system.slots, color)
        _draw_lengths(lengths, run, color)
    staleness.set(title="staleness of trained experiences", xlabel="weight versions", ylabel="share")
    busy.set(title="busy: slots (solid) and trainer (dotted)", xlabel="virtual seconds", ylabel="share", ylim=(0, 1.04))
    lengths.set(
        title="lengths: generated (dashed) and trained (solid)",
        xlabel="seconds",
        ylabel="share that is longer",
        yscale="log",
    )
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _run_label(run: SimulationOutcome) -> str:
    """Returns the policy with its bound, for legends."""
    return f"{run.policy}, bound {run.bound}"


def _draw_throughput(axes: Any, report: Report) -> None:
    """Draws a bar per policy, two of synchronous training, and the optimum as a line."""
    sync = report.synchronous
    names = [_run_label(run) for run in report.runs] + ["colocated, synchronous", "disaggregated, synchronous"]
    rates = [run.throughput_per_s for run in report.runs]
    rates += [sync.colocated.throughput_per_s, sync.disaggregated.throughput_per_s]
    colors = [_COLORS[index % len(_COLORS)] for index in range(len(report.runs))] + [_GREY, _GREY]
    bars = axes.barh(range(len(names)), rates, color=colors)
    axes.bar_label(bars, labels=[f"{rate:.4g}" for rate in rates], padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    optimum = report.runs[0].optimum_per_s
    axes.axvline(optimum, color="black", linestyle="--", linewidth=1)
    axes.set(
        title=f"throughput; the optimum of the split is {optimum:.4g} (dashed)",
        xlabel="experiences trained per second",
        xlim=(0, optimum * 1.15),
    )


def _draw_staleness(axes: Any, run: SimulationOutcome, color: str, *, offset: int, of: int) -> None:
    """Draws the shares of staleness of one policy, as bar `offset` of `of` beside each other."""
    counts = run.staleness.counts
    width = 0.8 / of
    total = sum(counts.values())
    positions = [version + (offset - (of - 1) / 2) * width for version in counts]
    axes.bar(positions, [count / total for count in counts.values()], width=width, color=color, label=_run_label(run))
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_busy_shares(axes: Any, run: SimulationOutcome, slots: int, color: str) -> None:
    """Draws the busy shares over time: of `slots` (solid) and of the trainer (dotted)."""
    times = [0.0]
    of_slots = []
    of_trainer = []
    busy_slots_s = training_s = 0.0
    for step in run.course:
        took_s = step.end_s - times[-1]
        of_slots.append((step.busy_slots_s - busy_slots_s) / (slots * took_s))
        of_trainer.append((step.training_s - training_s) / took_s)
        times.append(step.end_s)
        busy_slots_s = step.busy_slots_s
        training_s = step.training_s
    axes.stairs(of_slots, times, baseline=None, color=color, linewidth=1.4)
    axes.stairs(of_trainer, times, baseline=None, color=color, linewidth=1.2, linestyle=":")


def _draw_lengths(axes: Any, run: SimulationOutcome, color: str) -> None:
    """Draws the shares of rollouts longer than a length: generated (dashed) and trained."""
    shares = [1 - index / 100 for index in range(100)]
    axes.plot(run.lengths_generated_s[:100], shares, color=_GREY, linestyle="--", linewidth=2)
    axes.plot(run.lengths_trained_s[:100], shares, color=color, linewidth=1.2)
