"""Trains a million experiences in virtual time and counts those over the staleness bound; prints JSON.

python -P tests/bench/hard_bound.py [EXPERIENCES] [BOUND]: log-normal rollouts with p99/p50 = 10, cut at 30 medians, 16
units of 32 slots, batches of 512 in groups of 8; the real policy, planner and folds. How old an experience is follows
from the weights that its slot had when it began, not from what the planner wrote.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures import tell

from rftd.workers.control.simulator.options import SimulationOptions, stages_of, system_of
from rftd.workers.control.simulator.simulation import Simulation
from rftd.workers.control.simulator.system import LongTail

BATCH, GROUP = 512, 8


def main(experiences: int, bound: int) -> None:
    """Prints what was trained and how old it was."""
    asked, lengths = SimulationOptions(bound=bound, batch=BATCH, repeat_times=GROUP), LongTail(cut=30.0)
    (stage,) = stages_of(asked, None)
    began_s = time.perf_counter()
    system = system_of(asked, None, BATCH, lengths)
    outcome = Simulation(stage, system, lengths, steps=max(2, -(-experiences // BATCH)), seed=1).run()
    figures = {
        "trained": outcome.steps * BATCH,
        "produced": outcome.produced,
        "bound": bound,
        "trained_over_the_bound": outcome.staleness.over_bound,
        "staleness_max_versions": outcome.staleness.max,
        "staleness_mean_versions": round(outcome.staleness.mean, 3),
        "dropped": {reason: round(share, 4) for reason, share in outcome.dropped.items()},
        "of_optimum": round(outcome.of_optimum, 3),
        "virtual_s": round(outcome.virtual_s),
        "took_s": round(time.perf_counter() - began_s, 1),
    }
    tell(figures)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000,
        int(sys.argv[2]) if len(sys.argv) > 2 else 2,
    )
