"""Weights taken in flight against draining at each update, by the real log and processes with timed engines; JSON.

python -P tests/bench/inflight.py [--median 2] [--steps 20] [--train-time 2] [--processes 8]

The sizes of async_sync.py. Draining is `sync_style: fixed` with interval 1 and offset 2: explorers run two steps ahead,
and each takes the next weights when its last rollout has ended. Both on the split that is best for in flight.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from async_sync import SIZES, sizes_of
from figures import note, read_options, tell
from timed_run import ASYNC, fixed, timed_run

from rftd.workers.control.simulator.options import SimulationOptions, system_of
from rftd.workers.control.simulator.system import LongTail

BAR = 2.0


def main() -> None:
    chosen = read_options(__doc__, steps=20, **SIZES)
    lengths = LongTail(median_s=chosen.median)
    asked = SimulationOptions(units=chosen.units, slots=chosen.slots, train_s=chosen.train_time * chosen.median)
    system = system_of(asked, None, chosen.batch, lengths)
    runs = {}
    for name, overrides in (("in_flight", ASYNC), ("draining", fixed(2))):
        runs[name] = timed_run(sizes_of(system, chosen, lengths, chosen.steps), *overrides)
        note({name: msgspec.to_builtins(runs[name])})
    ratio = runs["in_flight"].throughput_per_s / runs["draining"].throughput_per_s
    tell({"ratio": round(ratio, 3), "bar": BAR, "runs": msgspec.to_builtins(runs)})


if __name__ == "__main__":
    main()
