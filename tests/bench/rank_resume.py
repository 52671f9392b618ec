"""A trainer stopped after each step of ten and taken up by one rank and by two: its distance from its own run.

PPO with a critic, a reference and a schedule. Weights and Adam's moments of policy and critic are compared one step
after each stop; the same number of ranks must find the same bits.

    python -P tests/bench/rank_resume.py [--engine verl] [--steps 10]        verl in an environment that has it
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.models.engine_parity import make_models
from synthetic.models.resumed_ranks import ResumeBench

BOUND = 1e-6


def main() -> None:
    options = read_options(__doc__, engine={"choices": ["torch", "verl"], "default": "torch"}, steps=10)
    with tempfile.TemporaryDirectory(prefix="resume-") as name:
        bench = ResumeBench(options.engine, make_models(Path(name)), Path(name))
        found = []
        for apart in bench.apart(options.steps):
            found.append(apart)
            print(apart, file=sys.stderr, flush=True)
        bench.close()
    farthest = {
        f"{before} ranks, then {after}": {
            "weights": max(each.weights for each in found if (each.before, each.after) == (before, after)),
            "moments": max(each.moments for each in found if (each.before, each.after) == (before, after)),
        }
        for before in (1, 2)
        for after in (1, 2)
    }
    tell({"stops": len(found), "farthest": farthest})
    same = [each for each in found if each.before == each.after and (each.weights or each.moments)]
    far = [each for each in found if each.weights > BOUND or each.moments > BOUND]
    if same or far:
        sys.exit(f"farther apart than {BOUND}, or not the same bits with as many ranks: {[*same, *far]}")


if __name__ == "__main__":
    main()
