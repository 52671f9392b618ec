"""Are the lengths that are trained those that are generated, with a bound of 2 on staleness? Prints JSON.

python -P tests/bench/drop_bias.py [--steps 100] [--real] [--real-steps 20] [--median 2]

The sizes of async_sync.py (16 units of 32 slots, batches of 512 in groups of 2, p99/p50 = 10, cut at 10 medians), in
the simulator with the real policy and planner; with `--real` also by the real daemon and its processes. `paced` is the
policy `weight_fifo` with `wait: true`: no batch is formed while a group is under way that would be too old for the
next. `hasty` is `hard_bound`, which drops what took too long. `p` is of the two-sample KS test; the bar is p > 0.05 for
`paced`. `of_optimum` and `ratio` say what the patience costs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from async_sync import SIZES, asked_of, sizes_of
from figures import note, read_options, tell
from timed_run import ASYNC, timed_run

from rftd.workers.control.simulator.options import stages_of, system_of
from rftd.workers.control.simulator.report import compare

BAR = 0.05
POLICIES = {
    "hasty": ("hard_bound", {}, "policy={kind: hard_bound, max_staleness: 2}"),
    "paced": ("weight_fifo", {"wait": True}, "policy={kind: weight_fifo, max_staleness: 2, wait: true}"),
}


def main() -> None:
    chosen = read_options(__doc__, steps=100, real=False, real_steps=20, **SIZES)
    asked, lengths = asked_of(chosen, publish_s=0.05)
    system = system_of(asked, None, chosen.batch, lengths)
    (base,) = stages_of(asked, None)
    stages = [
        msgspec.structs.replace(base, policy=msgspec.structs.replace(base.policy, kind=kind, args=args))
        for kind, args, _ in POLICIES.values()
    ]
    report = compare(stages, system, lengths, steps=chosen.steps, seed=1)
    figures: dict[str, dict[str, object]] = {
        name: {
            "simulated": {
                "p": run.drop_bias.p,
                "statistic": round(run.drop_bias.statistic, 5),
                "mean_generated_s": round(run.drop_bias.generated_mean_s, 3),
                "mean_trained_s": round(run.drop_bias.trained_mean_s, 3),
                "dropped": run.dropped,
                "staleness_max_versions": run.staleness.max,
                "of_optimum": round(run.of_optimum, 3),
                "ratio": round(report.speed_up(run), 3),
                "produced": run.produced,
            }
        }
        for name, run in zip(POLICIES, report.runs, strict=True)
    }
    for name, (_, _, override) in POLICIES.items():
        if chosen.real:
            measured = timed_run(sizes_of(system, chosen, lengths, chosen.real_steps), *ASYNC, override)
            figures[name]["real"] = msgspec.to_builtins(measured)
            note({name: figures[name]["real"]})
    tell({"bar": BAR, **figures})


if __name__ == "__main__":
    main()
