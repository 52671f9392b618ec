"""The long version of the tests of tables: random logs, projected as they grew and rebuilt from nothing.

Prints a JSON object and ends with status 1 if a rebuilt table differs from its live one; a seed repeats its log.
Run: python -P tests/property/torture.py [--logs 1000] [--first-seed 0]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    chosen = parser.parse_args()
    from synthetic.log.rebuilds import rebuilt

    began_s, records, different = time.monotonic(), 0, {}
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.logs)
    for seed in seeds:
        report = asyncio.run(rebuilt(seed))
        records += sum(mark.next_offset for mark in report.rebuilt.positions.values())
        if report.different or report.live != report.rebuilt:
            different[seed] = list(report.different)
    found = asyncio.run(rebuilt(chosen.first_seed, spoil=True)).different
    counts = {
        "logs": len(seeds),
        "records": records,
        "different": different,
        "a_missing_row_is_found_in": list(found),
        "wall_s": round(time.monotonic() - began_s, 1),
    }
    print(json.dumps(counts))
    return 1 if different or not found else 0


if __name__ == "__main__":
    sys.exit(main())
