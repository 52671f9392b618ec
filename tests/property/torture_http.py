"""The long version of the test of the API's document: requests by the thousand, every check, nothing found.

Prints a JSON object and ends with status 1 if an answer was not what the document says, or if a reader had an effect at
all or a submitter one on experiments of others; a seed repeats its requests.
Run: python -P tests/property/torture_http.py [--requests 10000] [--first-seed 0] [--role owner]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import count
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

PHASES = ["examples", "coverage", "fuzzing", "stateful"]
EXAMPLES = 25


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--role", choices=("owner", "admin", "submit", "read"), default="owner")
    chosen = parser.parse_args()
    from synthetic.daemon.http_probe import probed

    began_s, requests, failures, rounds = time.monotonic(), 0, {}, 0
    for seed in count(chosen.first_seed):
        found = probed(seed=seed, examples=EXAMPLES, phases=PHASES, role=chosen.role)
        requests += found.requests
        failures |= found.failures
        rounds += 1
        if requests >= chosen.requests or failures:
            break
    wall_s = round(time.monotonic() - began_s, 1)
    print(json.dumps({"requests": requests, "rounds": rounds, "failures": failures, "wall_s": wall_s}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
