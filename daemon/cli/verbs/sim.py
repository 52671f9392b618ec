"""`rftd sim`: a forecast of an experiment in virtual time, before it costs anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.table import Page, console_of, show, table
from rftd.daemon.cli.settings import Duration, Settings, shared_options

if TYPE_CHECKING:
    from rftd.streams.spec.spec import StageSpec
    from rftd.workers.control.simulator.outcome import SimulationOutcome
    from rftd.workers.control.simulator.report import Report

_DURATION = Duration()
"""Click type of durations in seconds."""
_COUNT = click.IntRange(1)
"""Click type of counts, from 1."""
_POLICY = "KIND[:BOUND[:NAME=VALUE,...]]"
"""Form of a policy in the help."""
_HEADERS: Final = (
    *("POLICY", "BOUND", "PER S", "OPTIMUM", "x SYNC", "STALENESS", "P95", "MAX"),
    *("EXPLORERS", "TRAINER", "DROPPED", "KS P"),
)
"""Headers of the table of several policies."""
_NO_BIAS: Final = 0.05
"""The p-value above which dropped rollouts count as not longer than others."""


@click.group("sim")
def sim_group() -> None:
    """Try a staleness policy and sizes in virtual time."""


@sim_group.command("async")
@click.option(
    "--config", "file", type=click.Path(exists=True, dir_okay=False), help="Experiment file with policy and sizes."
)
@click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a field of the file; repeatable.")
@click.option("--units", type=_COUNT, help="Number of machines or devices [16].")
@click.option("--slots", type=_COUNT, help="Rollouts that a unit runs at once [32].")
@click.option("--train-units", type=_COUNT, help="Units that train [the best split]; the others generate.")
@click.option("--batch", type=_COUNT, help="Experiences per training step [512].")
@click.option("--repeat-times", type=_COUNT, help="Rollouts per group [1].")
@click.option("--policy", metavar=_POLICY, help="Staleness policy [hard_bound:2].")
@click.option("--bound", type=click.IntRange(0), help="Maximum staleness in weight versions [2].")
@click.option(
    "--inflight", "inflight_batches", type=_COUNT, help="Maximum number of batches in flight or waiting [bound + 1]."
)
@click.option("--median", type=_DURATION, default="1s", show_default=True, help="Median duration of a rollout.")
@click.option("--tail", type=click.FloatRange(1), default=10.0, show_default=True, help="p99 / p50 of the durations.")
@click.option("--cut", type=click.FloatRange(1), default=10.0, show_default=True, help="Longest duration, in medians.")
@click.option("--train-time", "train_s", type=_DURATION, help="Duration of a training step on all units [2s].")
@click.option(
    "--step-time", "step_s", type=_DURATION, help="Duration of a step on the training units; replaces --train-time."
)
@click.option(
    "--publish-time",
    "publish_s",
    type=_DURATION,
    default="0s",
    help="Time from the end of a step until its weights reach the units.",
)
@click.option(
    "--swap-time", "swap_s", type=_DURATION, default="0s", help="Time for which a unit pauses to load weights."
)
@click.option(
    "--updates",
    type=click.Choice(("inflight", "drain_each", "drain_all")),
    default="inflight",
    show_default=True,
    help="When units take weights: at once, when their own rollouts have ended, or when all have.",
)
@click.option("--steps", type=click.IntRange(2), default=100, show_default=True, help="Training steps to simulate.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the durations.")
@click.option("--compare", multiple=True, metavar=_POLICY, help="Add a row for this policy; repeatable.")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Also draw the forecast.")
@shared_options
@click.pass_obj
def async_command(
    settings: Settings,
    /,
    file: str | None,
    overrides: tuple[str, ...],
    median: float,
    tail: float,
    cut: float,
    updates: str,
    steps: int,
    seed: int,
    plot: str | None,
    **asked_for: Any,
) -> None:
    """Forecast throughput, staleness, idle time and drops of asynchronous training, with the real policy and planner.

    The optimum is the throughput if neither side ever waited: the slower of explorers that generate without a pause and
    a trainer that trains without one. Rates exclude the first tenth of the steps, while the system fills.
    """
    from pathlib import Path

    from rftd.ops.extras import PLOT, check_extra
    from rftd.workers.control.simulator.options import SimulationOptions, stages_of, system_of
    from rftd.workers.control.simulator.report import compare as forecast
    from rftd.workers.control.simulator.system import LongTail, SimulatedUpdates

    if plot is not None:  # before the forecast, which takes a while
        check_extra(PLOT, "--plot")
    request = SimulationOptions(updates=SimulatedUpdates(updates), **asked_for)
    stage = _first_exploring_stage(file, overrides)
    stages = stages_of(request, stage)
    lengths = LongTail(median_s=median, tail=tail, cut=cut)
    report = forecast(
        stages, system_of(request, stage, stages[0].train_batch_size, lengths), lengths, steps=steps, seed=seed
    )
    if plot is not None:
        from rftd.daemon.cli.output.forecast_picture import draw

        draw(report, Path(plot))
    if not emitted(msgspec.to_builtins(report, str_keys=True), settings):
        show(console_of(settings), _render(report))


def _first_exploring_stage(file: str | None, overrides: tuple[str, ...]) -> StageSpec | None:
    """Returns the first exploring stage of the file; None without a file. Raises UsageError if no stage explores, and
    for overrides without a file.
    """
    if file is None:
        if overrides:
            raise click.UsageError("-s sets a field of a file: add --config")
        return None
    from rftd.daemon.config.loading import load_file

    spec = load_file(file, overrides=overrides).spec
    for stage in spec.stages:
        if stage.kind != "train":
            return stage
    raise click.UsageError(f"no stage of {file} explores: nothing to simulate")


def _render(report: Report) -> RenderableType:
    """Renders the report: its common figures, then one policy as lines or several as a table."""
    lines: list[RenderableType] = [Page(_setting_lines(report))]
    if len(report.runs) == 1:
        lines.append(Page(_policy_lines(report, report.runs[0])))
    else:
        rows = [_policy_row(report, run) for run in report.runs]
        lines += [Text(""), table(_HEADERS, rows, right=frozenset(_HEADERS[1:]))]
        lines.append(Text("OPTIMUM: share of it; EXPLORERS, TRAINER: shares of their time idle", style="dim"))
    return Group(*lines)


def _setting_lines(report: Report) -> Iterator[tuple[str, str]]:
    """Yields the lines common to all policies: system, rollouts, optimum, synchronous training."""
    system = report.system
    lengths = report.lengths
    sync = report.synchronous
    yield (
        "system",
        f"{system.units} units of {system.slots} slots: {system.rollout_units} generate, {system.train_units} train; "
        f"a batch of {report.batch} takes {_rounded(system.step_s)} s; updates {system.updates}",
    )
    yield (
        "rollouts",
        f"median {_rounded(lengths.median_s)} s, p99/p50 {_rounded(lengths.tail)}, cut at {_rounded(lengths.cut)} "
        f"medians, mean {_rounded(report.mean_s)} s, groups of {report.repeat_times}",
    )
    best = report.best_train_units
    split = "this split is the best" if best == system.train_units else f"with {best} units training"
    yield "optimum", f"{_rounded(report.best_optimum_per_s)} experiences/s without any waiting; {split}"
    apart = sync.disaggregated.system
    yield (
        "synchronous",
        f"{_rounded(sync.best.throughput_per_s)} experiences/s: colocated {_rounded(sync.colocated.throughput_per_s)}, "
        f"disaggregated {_rounded(sync.disaggregated.throughput_per_s)} with {apart.train_units} units training",
    )


def _policy_lines(report: Report, run: SimulationOutcome) -> Iterator[tuple[str, str]]:
    """Yields the lines of one policy."""
    yield "policy", f"{run.policy}, bound {run.bound}; {run.steps} steps in {_rounded(run.virtual_s)} s"
    yield (
        "throughput",
        f"{_rounded(run.throughput_per_s)} experiences/s: {_percent(run.of_optimum)} of this split's optimum, "
        f"{report.speed_up(run):.2f} x synchronous",
    )
    stale = run.staleness
    yield "staleness", f"mean {stale.mean:.2f}, p95 {stale.p95:g}, at most {stale.max} weight versions"
    yield "idle", f"explorers {_percent(run.idle_explorers)}, trainer {_percent(run.idle_trainer)} of their time"
    yield "dropped", _drops(run)
    bias = run.drop_bias
    verdict = (
        "dropped rollouts are as long as the rest"
        if bias.p > _NO_BIAS
        else "dropped rollouts differ in length from the rest"
    )
    yield (
        "drop bias",
        f"mean length {_rounded(bias.generated_mean_s)} s generated, {_rounded(bias.trained_mean_s)} s trained; "
        f"KS {bias.statistic:.4f}, p {bias.p:.2g}: {verdict}",
    )


def _drops(run: SimulationOutcome) -> str:
    """Returns the shares of dropped rollouts by reason."""
    if not run.dropped:
        return f"nothing of {run.produced}"
    reasons = ", ".join(f"{reason} {_percent(share)}" for reason, share in run.dropped.items())
    return f"{reasons} of {run.produced}"


def _policy_row(report: Report, run: SimulationOutcome) -> tuple[str, ...]:
    """Returns one policy as a row of the table."""
    return (
        run.policy,
        str(run.bound),
        _rounded(run.throughput_per_s),
        _percent(run.of_optimum),
        f"{report.speed_up(run):.2f}",
        f"{run.staleness.mean:.2f}",
        f"{run.staleness.p95:g}",
        str(run.staleness.max),
        _percent(run.idle_explorers),
        _percent(run.idle_trainer),
        _percent(sum(run.dropped.values())),
        f"{run.drop_bias.p:.2g}",
    )


def _percent(fraction: float) -> str:
    """Returns a share in percent; negative rounding errors become 0."""
    return f"{max(0.0, fraction) * 100:.1f} %"


def _rounded(figure: float) -> str:
    """Returns a figure with four significant digits."""
    return f"{figure:.4g}"
