"""The long version of the tests of mutated records: a hundred thousand and more, read by everybody who reads a log.

Prints a JSON object and ends with status 1 if anything but an error with a name was raised; a seed repeats its log.
Run: python -P tests/property/torture_records.py [--mutants 100000] [--first-seed 1000] [--tables 0.1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

MEMORY_MIB = 512
"""The most memory that this process may take beyond what it took before the first log."""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--tables", type=float, default=0.1, help="share of the logs that tables and verify read too")
    chosen = parser.parse_args()
    from synthetic.log.mutation import mutants
    from synthetic.log.readers import fold_and_decide, of_a_log, quietly, records_of

    began_s, seed, made, failures = time.monotonic(), chosen.first_seed, 0, dict[int, str]()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tables = 0.0
    while made < chosen.mutants:
        id, drafts, more = mutants(seed)
        made, tables = made + more, tables + chosen.tables
        try:
            records = records_of(drafts)
            fold_and_decide(records, id, seed)
            quietly(records, id)
            if tables >= 1.0:
                tables -= 1.0
                asyncio.run(of_a_log(drafts, id, seed))
        except Exception:
            failures[seed] = traceback.format_exc(limit=-3)
        seed += 1
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    counts = {
        "mutants": made,
        "logs": seed - chosen.first_seed,
        "raised": failures,
        "memory_mib": round(grown_mib, 1),
        "wall_s": round(time.monotonic() - began_s, 1),
    }
    print(json.dumps(counts, indent=1))
    return 1 if failures or grown_mib > MEMORY_MIB else 0


if __name__ == "__main__":
    sys.exit(main())
