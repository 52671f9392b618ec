"""`rftd sim`: what an experiment would do, before anything is paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.settings import Duration, Settings, shared_options

if TYPE_CHECKING:
    from rftd.streams.spec import StageSpec

_DURATION = Duration()
_COUNT = click.IntRange(1)
_POLICY = "KIND[:BOUND[:NAME=VALUE,...]]"


@click.group("sim")
def sim_group() -> None:
    """Try policy and sizes in virtual time."""


@sim_group.command("async")
@click.option("--config", "file", type=click.Path(exists=True, dir_okay=False), help="Policy and sizes of this file.")
@click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a field of the file; repeatable.")
@click.option("--units", type=_COUNT, help="Machines, or devices, in all [16].")
@click.option("--slots", type=_COUNT, help="Rollouts that a unit runs at once [32].")
@click.option("--train-units", type=_COUNT, help="Units that train [as is best]; the others generate.")
@click.option("--batch", type=_COUNT, help="Experiences of a training step [512].")
@click.option("--repeat-times", type=_COUNT, help="Rollouts of a group [1].")
@click.option("--policy", metavar=_POLICY, help="Staleness policy [hard_bound:2].")
@click.option("--bound", type=click.IntRange(0), help="Most weight versions that an experience may be old [2].")
@click.option(
    "--inflight", "inflight_batches", type=_COUNT, help="Batches that may be under way and waiting [bound + 1]."
)
@click.option("--median", type=_DURATION, default="1s", show_default=True, help="Of a rollout's duration.")
@click.option("--tail", type=click.FloatRange(1), default=10.0, show_default=True, help="p99 / p50 of it.")
@click.option("--cut", type=click.FloatRange(1), default=10.0, show_default=True, help="Its longest, in medians.")
@click.option("--train-time", "train_s", type=_DURATION, help="A training step, if all units trained [2s].")
@click.option(
    "--step-time", "step_s", type=_DURATION, help="A training step, on the units that train: instead of that."
)
@click.option(
    "--publish-time", "publish_s", type=_DURATION, default="0s", help="From a step's end to its weights at the units."
)
@click.option(
    "--swap-time", "swap_s", type=_DURATION, default="0s", help="How long a unit stands still to take weights."
)
@click.option(
    "--updates",
    type=click.Choice(("inflight", "drain_each", "drain_all")),
    default="inflight",
    show_default=True,
    help="Units take weights at once, when their rollouts ended, or when everyone's have.",
)
@click.option("--steps", type=click.IntRange(2), default=100, show_default=True, help="Training steps to follow.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the durations.")
@click.option("--compare", multiple=True, metavar=_POLICY, help="A row for each of these; repeatable.")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw it, too.")
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
    """Forecast throughput, staleness, idle shares and drops of asynchronous training, by the real policy and planner.

    The optimum is the throughput if neither side ever waited: the slower of all slots generating without a pause, and
    the trainer training without one. Rates leave out the first tenth of the steps, in which the system fills.
    """
    from pathlib import Path

    from rftd.workers.forecast.asked import Asked, stages_of, system_of
    from rftd.workers.forecast.long_tail import LongTail
    from rftd.workers.forecast.report import compare as forecast
    from rftd.workers.forecast.system import Updates

    asked = Asked(updates=Updates(updates), **asked_for)
    stage = _stage(file, overrides)
    stages, lengths = stages_of(asked, stage), LongTail(median_s=median, tail=tail, cut=cut)
    report = forecast(
        stages, system_of(asked, stage, stages[0].train_batch_size, lengths), lengths, steps=steps, seed=seed
    )
    if plot is not None:
        from rftd.daemon.output.forecast_picture import draw

        draw(report, Path(plot))
    if settings.machine_readable:
        import msgspec

        from rftd.daemon.output.data import emit

        emit(msgspec.to_builtins(report, str_keys=True), settings)
        return
    from rftd.daemon.output.forecast import render
    from rftd.daemon.output.table import console_of

    console_of(settings).print(render(report))


def _stage(file: str | None, overrides: tuple[str, ...]) -> StageSpec | None:
    """The first stage of the file that explores; None without a file."""
    if file is None:
        if overrides:
            raise click.UsageError("-s sets a field of a file: add --config")
        return None
    from rftd.daemon.config.loading import load_file

    spec = load_file(file, overrides=overrides).spec
    for stage in spec.stages:
        if stage.kind != "train":
            return stage
    raise click.UsageError(f"no stage of {file} explores: there is nothing to simulate")
