"""Weights taken in flight against draining at each update, by the real log and processes with timed engines; JSON.

python -P tests/bench/inflight.py [--median 2] [--steps 20] [--train-time 2] [--processes 8]

The sizes of async_sync.py. Draining is `sync_style: fixed` with interval 1 and offset 2: explorers run two steps ahead,
and each takes the next weights when its last rollout has ended. Both on the split that is best for in flight.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from async_sync import sizes_of
from figures import tell
from timed_run import ASYNC, fixed, timed_run

from rftd.workers.control.simulator.options import SimulationOptions, system_of
from rftd.workers.control.simulator.system import LongTail

BAR = 2.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--median", type=float, default=2.0, help="seconds")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--train-time", type=float, default=2.0, help="medians, if all units train")
    parser.add_argument("--units", type=int, default=16)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeat-times", type=int, default=2)
    parser.add_argument("--processes", type=int, default=8)
    chosen = parser.parse_args()
    lengths = LongTail(median_s=chosen.median)
    asked = SimulationOptions(units=chosen.units, slots=chosen.slots, train_s=chosen.train_time * chosen.median)
    system = system_of(asked, None, chosen.batch, lengths)
    runs = {}
    for name, overrides in (("in_flight", ASYNC), ("draining", fixed(2))):
        runs[name] = timed_run(sizes_of(system, chosen, lengths, chosen.steps), *overrides)
        print(json.dumps({name: msgspec.to_builtins(runs[name])}), file=sys.stderr)
    ratio = runs["in_flight"].throughput_per_s / runs["draining"].throughput_per_s
    tell({"ratio": round(ratio, 3), "bar": BAR, "runs": msgspec.to_builtins(runs)})


if __name__ == "__main__":
    main()
