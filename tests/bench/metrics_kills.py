"""Gauges of state after each kill of the daemon against `rftd get`. Run: python -P tests/bench/metrics_kills.py

A run of fake engines goes on while its daemon is killed (SIGKILL) at random moments. Each time, a scrape of the next
daemon is compared with the page that `rftd get` shows. The run moves meanwhile: a scrape that lies between two
different pages proves nothing, and both are asked for again.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.gauges import differing, expected, standing
from synthetic.daemon.scene import ENDED, EXPERIMENT, Scene

from rftd.daemon.observe.metrics_scrape import REST

PATIENCE_S = 240.0
SLOW = (
    "stages=[]",
    "buffer.total_steps=2000",
    "explorer.runner_per_model=4",
    "explorer.rollout_model.extra_engine_args.latency_s=1.0",
    "explorer.eval_interval=5",
)
"""Rollouts in bursts of a second, so that a scrape fits between them."""


def compared(scene: Scene, name: str) -> tuple[int, dict[str, tuple[float | None, float | None]]]:
    """The number of gauges of the first scrape between two equal pages, and those that differ: (scrape, page)."""
    deadline_s = time.monotonic() + PATIENCE_S
    read_again_s = 0.0
    while time.monotonic() < deadline_s:
        before = scene.page(name)
        asked_s = time.monotonic()
        text = scraped(scene)
        now_s = time.monotonic()
        # A reading of the tables took no longer than the scrape that waited for it.
        read_again_s = max(read_again_s, now_s + REST * (now_s - asked_s))
        after = scene.page(name)
        if before is None or after is None or text is None:
            continue
        wanted = expected(after, name)
        if expected(before, name) != wanted:
            # A scrape shows for a while what it has just read, and the next is to read anew.
            time.sleep(max(0.0, read_again_s - time.monotonic()))
            continue
        return len(wanted), differing(standing(text, name), wanted)
    raise SystemExit("no scrape between two equal pages")


def scraped(scene: Scene) -> str | None:
    """The answer of /metrics; None while the daemon does not answer."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{scene.host.url}/metrics", headers=scene.host.headers), timeout=30
        ) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def main() -> None:
    """Prints the figures as JSON, and fails if a gauge differed or too few kills struck."""
    given = read_options(__doc__, kills=20, seed=1)
    chance = random.Random(given.seed)
    kills, gauges = 0, list[int]()
    differ: list[dict[str, tuple[float | None, float | None]]] = []
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder))
        with scene.host:
            name = scene.submit(EXPERIMENT, *SLOW)
            scene.until_step(name, 2)
            while kills < given.kills:
                time.sleep(chance.uniform(0.1, 4.0))
                if not scene.kill("daemon", name):
                    break
                kills += 1
                count, wrong = compared(scene, name)
                gauges.append(count)
                differ += [wrong] if wrong else []
            page = scene.page(name)
            steps = 0 if page is None else page.experiment.summary.step
            state = "" if page is None else page.experiment.summary.state
    figures = {"kills": kills, "gauges_each": sorted(set(gauges)), "differ": differ, "steps": steps, "state": state}
    tell({**figures})
    if differ or kills < given.kills or state in ENDED:
        raise SystemExit("a gauge differs, or the run ended before the kills did")


if __name__ == "__main__":
    main()
