"""What the daemon itself uses while a run goes on beside it. Run: python -P tests/bench/daemon_load.py

Fake engines make about a hundred rollouts and one training step a second; a scraper asks for /metrics every second.
The processor time and the memory are those of the daemon's process, without its workers.
"""

from __future__ import annotations

import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

import msgspec
import psutil

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.gauges import shown
from synthetic.daemon.scene import EXPERIMENT, Scene

BAR_CORE: Final = 0.05
BAR_MIB: Final = 200.0
PACED: Final = (
    "stages=[]",
    "buffer.total_steps=100000",
    "buffer.batch_size=23",
    "explorer.eval_interval=60",
    "explorer.runner_per_model=100",
    "explorer.rollout_model.extra_engine_args.latency_s=0.5",
    "trainer.save_interval=60",
    "trainer.engine_args.step_s=0.95",
)
"""23 tasks of four rollouts in each batch, and one batch a second; some rollouts are made that no batch takes."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one window."""

    seconds: float
    steps_per_s: float
    rollouts_per_s: float
    scrapes: int
    scrape_ms: float
    """The mean time that a scrape took."""
    daemon_core_ratio: float
    """The share of one core that the daemon used, its answers to scrapes among it."""
    daemon_mib: float
    """Its resident memory at the end."""


def watched(scene: Scene, name: str, seconds: float, every_s: float) -> Load:
    """Figures of the next seconds, with a scrape every `every_s`."""
    daemon = psutil.Process(scene.host.pid)
    first = scraped(scene)
    began_s = time.monotonic()
    used_s = sum(daemon.cpu_times()[:2])
    took_s: list[float] = []
    while time.monotonic() < began_s + seconds:
        asked_s = time.monotonic()
        last = scraped(scene)
        took_s.append(time.monotonic() - asked_s)
        time.sleep(max(0.0, every_s - took_s[-1]))
    lasted_s = time.monotonic() - began_s

    def rate(metric: str) -> float:
        totals = [sum(value for key, value in found.items() if key.startswith(metric)) for found in (first, last)]
        return (totals[1] - totals[0]) / lasted_s

    return Load(
        seconds=round(lasted_s, 1),
        steps_per_s=round(rate("rftd_train_steps_total{"), 2),
        rollouts_per_s=round(rate("rftd_rollouts_total{"), 1),
        scrapes=len(took_s),
        scrape_ms=round(1000 * sum(took_s) / len(took_s), 2),
        daemon_core_ratio=round((sum(daemon.cpu_times()[:2]) - used_s) / lasted_s, 4),
        daemon_mib=round(daemon.memory_info().rss / 2**20, 1),
    )


def scraped(scene: Scene) -> dict[str, float]:
    """The samples of /metrics now."""
    with urllib.request.urlopen(
        urllib.request.Request(f"{scene.host.url}/metrics", headers=scene.host.headers), timeout=30
    ) as answer:
        return shown(answer.read().decode())


def main() -> None:
    """Prints the figures as JSON, and fails if the daemon used more than the bars, or the run was slower."""
    given = read_options(
        __doc__,
        seconds=120.0,
        settle=(20.0, "seconds of the run before the window"),
        every=(1.0, "seconds between two scrapes"),
    )
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder))
        with scene.host:
            name = scene.submit(EXPERIMENT, *PACED)
            scene.until_step(name, 2)
            time.sleep(given.settle)
            print(f"daemon {scene.host.pid}", file=sys.stderr, flush=True)
            load = watched(scene, name, given.seconds, given.every)
    tell(load)
    if load.daemon_core_ratio > BAR_CORE or load.daemon_mib > BAR_MIB or load.rollouts_per_s < 90.0:
        raise SystemExit("above the bar, or slower than it says")


if __name__ == "__main__":
    main()
