"""Runs worlds.

run.py --seed 7                     one world, with its story
run.py --seeds 0:1000 --jobs 2      many, with a summary; exit status 1 if a promise was broken
run.py --fresh 10000 --jobs 2       seeds that nobody ran yet, noted in ledger.json
run.py --regressions --jobs 2       the worlds of regressions.txt
run.py --bug NAME                   a planted bug, and the seed that finds it; `all`: every one of them
run.py --bug all --note             the same; the seeds are tried first from now on
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from simulator.bugs import BUGS  # noqa: E402
from simulator.ledger import Ledger, revision  # noqa: E402
from simulator.scenario import draw  # noqa: E402
from simulator.world import Verdict, play  # noqa: E402

CHUNK_SEEDS = 25
FOUND = HERE / "found.json"
"""The seed that found each planted bug last, by its name; `--bug all --note` writes it anew."""


def command(mode: str, seed: int) -> str:
    """What repeats one world."""
    return f".venv/bin/python -P tests/sim/run.py --mode {mode} --seed {seed}"


def play_seed(mode: str, seed: int, *, story: bool = False) -> Verdict:
    """One world; what goes wrong with the simulation itself is a failure too."""
    try:
        return play(draw(seed, mode), story=story)
    except Exception:
        return Verdict(seed, [f"the simulation broke: {traceback.format_exc()}"], "broken", 0.0, 0, 0, "")


def play_some(mode: str, seeds: list[int]) -> list[Verdict]:
    """Worlds of one process, one after the other."""
    gc.freeze()
    return [play_seed(mode, seed) for seed in seeds]


def play_many(mode: str, seeds: list[int], jobs: int, *, chunk: int = CHUNK_SEEDS) -> list[Verdict]:
    """Worlds on several processes; the verdicts in the order of the seeds."""
    chunks = [seeds[at : at + chunk] for at in range(0, len(seeds), chunk)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        done = pool.map(play_some, [mode] * len(chunks), chunks)
        return [verdict for verdicts in done for verdict in verdicts]


def summary(mode: str, verdicts: list[Verdict], wall_s: float) -> dict[str, object]:
    """What many worlds came to."""
    hits: Counter[str] = Counter()
    for verdict in verdicts:
        hits.update(verdict.hits)
    return {
        "mode": mode,
        "worlds": len(verdicts),
        "violations": sum(1 for verdict in verdicts if verdict.failures),
        "states": Counter(verdict.state for verdict in verdicts),
        "virtual_hours": round(sum(verdict.virtual_s for verdict in verdicts) / 3600, 2),
        "records": sum(verdict.records for verdict in verdicts),
        "turns": sum(verdict.turns for verdict in verdicts),
        "worlds_per_s": round(len(verdicts) / wall_s, 2),
        "wall_s": round(wall_s, 1),
        "hits": dict(sorted(hits.items())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="swarm", choices=["swarm", "zombies", "served", "piped"])
    parser.add_argument("--seed", type=int, help="one world, with its story")
    parser.add_argument("--seeds", help="FIRST:LAST, the last one not included")
    parser.add_argument("--fresh", type=int, help="so many seeds that the ledger does not know")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--bug", choices=[*(bug.name for bug in BUGS), "all"])
    parser.add_argument("--note", action="store_true", help="note the seeds that found the bugs in found.json")
    parser.add_argument("--regressions", action="store_true")
    parser.add_argument("--traces", action="store_true", help="print every seed's trace instead of a summary")
    arguments = parser.parse_args()
    mode = arguments.mode
    if arguments.bug:
        names = [bug.name for bug in BUGS if arguments.bug in (bug.name, "all")]
        return hunt_many(names, arguments.jobs, note=arguments.note)
    if arguments.regressions:
        return play_regressions(arguments.jobs)
    if arguments.seed is not None:
        return tell(mode, arguments.seed)
    ledger = Ledger(HERE / "ledger.json")
    if arguments.fresh:
        seeds = ledger.fresh(mode, arguments.fresh)
    else:
        first, _, last = arguments.seeds.partition(":")
        seeds = list(range(int(first), int(last)))
    began_s = time.monotonic()
    verdicts = play_many(mode, seeds, arguments.jobs)
    bad = [verdict for verdict in verdicts if verdict.failures]
    if arguments.traces:
        print("\n".join(f"{verdict.seed} {verdict.trace} {verdict.records}" for verdict in verdicts))
    else:
        print(json.dumps(summary(mode, verdicts, time.monotonic() - began_s), indent=1))
    complain(mode, bad)
    if arguments.fresh:
        ledger.note(mode, seeds, [verdict.seed for verdict in bad], revision(HERE))
    return 1 if bad else 0


def hunt(name: str) -> str:
    """Plants a bug and plays worlds until one breaks the promise that it is about; empty if none does.

    The seed that found it last comes first; when kinds of faults are added, worlds change, and all of them are tried.
    """
    bug = next(each for each in BUGS if each.name == name)
    last = json.loads(FOUND.read_text()).get(name, 0)
    for seed in sorted(range(bug.within_seeds), key=lambda each: each != last):
        with bug.plant():
            failures = play_seed(bug.mode, seed).failures
        found = [failure for failure in failures if failure.startswith(bug.found_by)]
        if found:
            return f"{bug.mode} seed {seed}: {found[0][:200]}"
    return ""


def hunt_many(names: list[str], jobs: int, *, note: bool) -> int:
    """One line for each planted bug; `note`: and the seeds that found them, for the next time."""
    missed = 0
    seeds = json.loads(FOUND.read_text())
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        for name, found in zip(names, pool.map(hunt, names), strict=True):
            print(f"{name}: {f'found by {found}' if found else 'NOT FOUND'}", flush=True)
            missed += not found
            if found:
                seeds[name] = int(found.split()[2].rstrip(":"))
    if note:
        known = {bug.name for bug in BUGS}
        FOUND.write_text(json.dumps({name: seeds[name] for name in sorted(seeds) if name in known}, indent=1) + "\n")
    return min(missed, 1)


def play_regressions(jobs: int) -> int:
    """The worlds that once broke a promise."""
    lines = (HERE / "regressions.txt").read_text().splitlines()
    worlds = [line.split()[:2] for line in lines if line and not line.startswith("#")]
    broken = 0
    for mode in ("swarm", "zombies", "served", "piped"):
        verdicts = play_many(mode, [int(seed) for kind, seed in worlds if kind == mode], jobs, chunk=1)
        broken += complain(mode, verdicts)
    print(f"{len(worlds)} worlds of regressions.txt, {broken} broken")
    return min(broken, 1)


def complain(mode: str, verdicts: list[Verdict]) -> int:
    """Prints what was broken, and how to repeat it; the number of such worlds."""
    bad = [verdict for verdict in verdicts if verdict.failures]
    for verdict in bad:
        print(f"seed {verdict.seed} broke a promise; repeat it with: {command(mode, verdict.seed)}")
        for failure in verdict.failures[:5]:
            print(f"    {failure[:600]}")
    return len(bad)


def tell(mode: str, seed: int) -> int:
    """One world and its story."""
    print(draw(seed, mode))
    verdict = play_seed(mode, seed, story=True)
    print("\n".join(verdict.story))
    print(f"{verdict.state} after {verdict.virtual_s:.1f} virtual s, {verdict.turns} turns, trace {verdict.trace}")
    for failure in verdict.failures:
        print(f"BROKEN  {failure}")
    return 1 if verdict.failures else 0


if __name__ == "__main__":
    sys.exit(main())
