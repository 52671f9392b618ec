"""A forecast in words, and policies as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.output.table import table
from rftd.workers.forecast.outcome import Outcome
from rftd.workers.forecast.report import Report

_HEADERS: Final = (
    *("POLICY", "BOUND", "PER S", "OPTIMUM", "x SYNC", "STALENESS", "P95", "MAX"),
    *("EXPLORERS", "TRAINER", "DROPPED", "KS P"),
)
_LABEL: Final = 14
_NO_BIAS: Final = 0.05


def render(report: Report) -> RenderableType:
    """One policy as lines, several as a table, below what they have in common."""
    lines: list[RenderableType] = [_line(label, text) for label, text in _setting(report)]
    if len(report.runs) == 1:
        lines += [_line(label, text) for label, text in _one(report, report.runs[0])]
    else:
        rows = [_row(report, run) for run in report.runs]
        lines += [Text(""), table(_HEADERS, rows, right=frozenset(_HEADERS[1:]))]
        lines.append(Text("OPTIMUM: share of it; EXPLORERS, TRAINER: shares of their time idle", style="dim"))
    return Group(*lines)


def _setting(report: Report) -> Iterator[tuple[str, str]]:
    system, lengths, sync = report.system, report.lengths, report.synchronous
    yield (
        "system",
        f"{system.units} units of {system.slots} slots: {system.rollout_units} generate, {system.train_units} train; "
        f"a batch of {report.batch} takes {_number(system.step_s)} s; updates {system.updates}",
    )
    yield (
        "rollouts",
        f"median {_number(lengths.median_s)} s, p99/p50 {_number(lengths.tail)}, cut at {_number(lengths.cut)} "
        f"medians, mean {_number(report.mean_s)} s, groups of {report.repeat_times}",
    )
    best = report.best_train_units
    split = "this split is the best" if best == system.train_units else f"with {best} units training"
    yield "optimum", f"{_number(report.best_optimum_per_s)} experiences/s if nobody ever waited; {split}"
    apart = sync.disaggregated.system
    yield (
        "synchronous",
        f"{_number(sync.best.throughput_per_s)} experiences/s: colocated {_number(sync.colocated.throughput_per_s)}, "
        f"disaggregated {_number(sync.disaggregated.throughput_per_s)} with {apart.train_units} units training",
    )


def _one(report: Report, run: Outcome) -> Iterator[tuple[str, str]]:
    yield "policy", f"{run.policy}, bound {run.bound}; {run.steps} steps in {_number(run.virtual_s)} s"
    yield (
        "throughput",
        f"{_number(run.throughput_per_s)} experiences/s: {_share(run.of_optimum)} of this split's optimum, "
        f"{report.speed_up(run):.2f} x synchronous",
    )
    stale = run.staleness
    yield "staleness", f"mean {stale.mean:.2f}, p95 {stale.p95:g}, at most {stale.max} weight versions"
    yield "idle", f"explorers {_share(run.idle_explorers)}, trainer {_share(run.idle_trainer)} of their time"
    yield "dropped", _dropped(run)
    bias = run.drop_bias
    verdict = "what was dropped is like the rest" if bias.p > _NO_BIAS else "what was dropped is NOT like the rest"
    yield (
        "drop bias",
        f"mean length {_number(bias.generated_mean_s)} s generated, {_number(bias.trained_mean_s)} s trained; "
        f"KS {bias.statistic:.4f}, p {bias.p:.2g}: {verdict}",
    )


def _dropped(run: Outcome) -> str:
    if not run.dropped:
        return f"nothing of {run.produced}"
    reasons = ", ".join(f"{reason} {_share(share)}" for reason, share in run.dropped.items())
    return f"{reasons} of {run.produced}"


def _row(report: Report, run: Outcome) -> tuple[str, ...]:
    return (
        run.policy,
        str(run.bound),
        _number(run.throughput_per_s),
        _share(run.of_optimum),
        f"{report.speed_up(run):.2f}",
        f"{run.staleness.mean:.2f}",
        f"{run.staleness.p95:g}",
        str(run.staleness.max),
        _share(run.idle_explorers),
        _share(run.idle_trainer),
        _share(sum(run.dropped.values())),
        f"{run.drop_bias.p:.2g}",
    )


def _share(value: float) -> str:
    return f"{max(0.0, value) * 100:.1f} %"


def _line(label: str, text: str) -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), Text(text))


def _number(value: float) -> str:
    return f"{value:.4g}"
