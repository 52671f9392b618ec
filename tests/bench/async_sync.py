"""Asynchronous against synchronous training, end to end, by the real log and processes with timed engines; JSON.

python -P tests/bench/async_sync.py [--median 2] [--steps 30] [--train-time 2] [--processes 8]

Log-normal rollouts (p99/p50 = 10, cut at 10 medians), 16 units of 32 slots, batches of 512 in groups of 2, bound 2. A
training step takes `--train-time` medians if all 16 units train, and 16 / k of that on k. Three runs:
asynchronous  the split of the units that the simulator finds best, weights in flight
colocated     all units generate a batch, then all train it (sync_style fixed, offset 0)
disaggregated the split that is best for it; some generate while the others wait
The units of a run share at most `--processes` explorer processes, each with the slots of its units, so that two cores
are not what is measured. `of_optimum` is the asynchronous rate over `System.optimum_per_s`: 16 units, best
split, neither side ever waiting. `forecast` is what `rftd sim async` says of the same sizes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from figures import note, read_options, tell
from timed_run import ASYNC, Figures, Sizes, fixed, timed_run

from rftd.workers.control.simulator.options import SimulationOptions, stages_of, system_of
from rftd.workers.control.simulator.report import compare
from rftd.workers.control.simulator.system import LongTail, System

BAR_RATIO, BAR_OPTIMUM = 2.77, 0.90


SIZES: Final[dict[str, Any]] = {
    "median": (2.0, "seconds; what does not scale with it is ours"),
    "train_time": (2.0, "medians, if all units train"),
    "units": 16,
    "slots": 32,
    "batch": 512,
    "repeat_times": 2,
    "processes": 8,
}
"""The options for the sizes of a run: those of docs/benchmarks.md unless they are given."""


def asked_of(chosen: argparse.Namespace, *, publish_s: float) -> tuple[SimulationOptions, LongTail]:
    """What the simulator is asked for these options, and the lengths of rollouts."""
    asked = SimulationOptions(
        units=chosen.units,
        slots=chosen.slots,
        batch=chosen.batch,
        repeat_times=chosen.repeat_times,
        train_s=chosen.train_time * chosen.median,
        publish_s=publish_s,
    )
    return asked, LongTail(median_s=chosen.median)


def sizes_of(system: System, chosen: argparse.Namespace, lengths: LongTail, steps: int) -> Sizes:
    """A run's sizes on the split."""
    return Sizes(
        slots=system.rollout_units * system.slots,
        processes=min(chosen.processes, system.rollout_units),
        step_s=system.step_s,
        batch=chosen.batch,
        repeat_times=chosen.repeat_times,
        lengths=lengths,
        steps=steps,
    )


def main() -> None:
    chosen = read_options(__doc__, steps=30, sync_steps=8, **SIZES)
    asked, lengths = asked_of(chosen, publish_s=0.1)
    system = system_of(asked, None, chosen.batch, lengths)
    report = compare(stages_of(asked, None), system, lengths, steps=60, seed=1)
    apart = report.synchronous.disaggregated.system
    together = msgspec.structs.replace(system, colocated=True)
    runs: dict[str, Figures] = {}
    for name, split, steps, overrides in (
        ("asynchronous", system, chosen.steps, ASYNC),
        ("colocated", together, chosen.sync_steps, fixed(0)),
        ("disaggregated", apart, chosen.sync_steps, fixed(0)),
    ):
        runs[name] = timed_run(sizes_of(split, chosen, lengths, steps), *overrides)
        note({name: msgspec.to_builtins(runs[name])})
    rate = runs["asynchronous"].throughput_per_s
    better = max(runs["colocated"].throughput_per_s, runs["disaggregated"].throughput_per_s)
    forecast = report.runs[0]
    figures = {
        "ratio": round(rate / better, 3),
        "bar_ratio": BAR_RATIO,
        "of_optimum": round(rate / report.best_optimum_per_s, 3),
        "bar_of_optimum": BAR_OPTIMUM,
        "optimum_per_s": round(report.best_optimum_per_s, 2),
        "forecast": {
            "ratio": round(report.speed_up(forecast), 3),
            "of_optimum": round(forecast.of_optimum, 3),
            "dropped": forecast.dropped,
            "synchronous_per_s": round(report.synchronous.best.throughput_per_s, 2),
        },
        "train_units": {"asynchronous": system.train_units, "disaggregated": apart.train_units},
        "median_s": chosen.median,
        "runs": msgspec.to_builtins(runs),
    }
    tell(figures)


if __name__ == "__main__":
    main()
