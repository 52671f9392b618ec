"""The mean reward as a real Prometheus has it, against `rftd get`. Run: python -P tests/bench/metrics_reward.py

A run of fake engines is scraped every second by a real Prometheus (Debian: prometheus), and its daemon killed (SIGKILL)
now and then. Each sample of the mean reward is held against the point of the curve of the step in the same scrape.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.prometheus import Prometheus, free_port, prometheus_of
from synthetic.daemon.scene import EXPERIMENT, Scene

BAR: Final = 0.01
RUN: Final = (
    "stages=[]",
    "buffer.total_steps=100000",
    "explorer.eval_interval=1000",
    "trainer.engine_args.step_s=1.0",
)
"""Fewer steps than the page has points: it shows 200 of a longer curve."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    samples: int
    steps: int
    """Steps of the curve that a scrape has met."""
    kills: int
    lowest: float
    highest: float
    """The lowest and the highest mean that was drawn: a curve that stands still would prove nothing."""
    furthest_apart: float
    """The largest distance between a sample and the curve."""


def held_against(prometheus: Prometheus, scene: Scene, name: str, kills: int) -> Drawn:
    """The samples of the last hour against the curve that the page has now."""
    means = prometheus.scraped(f'rftd_rollout_reward_mean{{experiment="{name}"}}[1h]')
    steps = prometheus.scraped(f'rftd_train_step{{experiment="{name}"}}[1h]')
    page = scene.page(name)
    assert page is not None
    curve = {point.step: point.reward_mean for point in page.reward_curve}
    if missing := {int(step) for step in steps.values()} - curve.keys() - {0}:
        raise SystemExit(f"the page's curve has no point of steps {sorted(missing)}: measure for a shorter time")
    pairs = [(means[at], curve[int(steps[at])]) for at in means.keys() & steps.keys()]
    if len(pairs) != len(means):
        raise SystemExit(f"{len(means) - len(pairs)} samples of the mean without a step beside them")
    return Drawn(
        samples=len(pairs),
        steps=len({int(steps[at]) for at in means}),
        kills=kills,
        lowest=min(mean for mean, _ in pairs),
        highest=max(mean for mean, _ in pairs),
        furthest_apart=max(abs(mean - point) for mean, point in pairs),
    )


def main() -> None:
    """Prints the figures as JSON, and fails if a sample is further from the curve than the bar."""
    given = read_options(__doc__, seconds=120.0, kills=4)
    with tempfile.TemporaryDirectory() as folder:
        # A port of its own, for a daemon that is started again is scraped at the same address.
        scene = Scene(Path(folder), "--port", str(free_port()))
        with scene.host:
            name = scene.submit(EXPERIMENT, *RUN)
            scene.until_step(name, 1)
            with prometheus_of(Path(folder), scene.host.url, scene.data.root / "owner.token", every_s=1) as prometheus:
                for _ in range(given.kills):
                    time.sleep(given.seconds / (given.kills + 1))
                    scene.kill("daemon", name)
                    scene.until_step(name, 1)
                time.sleep(given.seconds / (given.kills + 1))
                drawn = held_against(prometheus, scene, name, given.kills)
    tell(drawn)
    if drawn.furthest_apart > BAR or drawn.samples < given.seconds / 4 or drawn.lowest == drawn.highest:
        raise SystemExit("a sample is not that of the curve, or there are too few to tell")


if __name__ == "__main__":
    main()
