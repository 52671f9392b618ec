"""A real Prometheus over a live run: every panel and every recording rule has data, before a kill and after it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from synthetic.until import poll

if TYPE_CHECKING:
    from synthetic.daemon.prometheus import Prometheus
    from synthetic.daemon.scene import Scene

TRAINED = frozenset({"Loss", "Gradient", "KL", "Clipped tokens", "Entropy"})
"""Panels of what a trainer with a model computes; the fake one has none. Their gauges have a test of their own."""
LONG = ("stages=[]", "buffer.total_steps=2000", "explorer.eval_interval=2", "trainer.engine_args.step_s=0.2")


def without_data(prometheus: Prometheus, experiment: str) -> list[str]:
    """The queries of panels and recording rules that a healthy run should have data for, and has none."""
    from synthetic.dashboards.files import DASHBOARDS
    from synthetic.dashboards.panel import ANY, expressions
    from synthetic.dashboards.rules import ON_FAILURE, RECORDED

    asked = {name: name for name in RECORDED if name not in ON_FAILURE}
    for board in DASHBOARDS.values():
        for panel, query in expressions(board):
            if not panel.on_failure and panel.title not in TRAINED:
                asked[f"{panel.title}: {query}"] = query
    plain = {
        told: query.replace("$__rate_interval", "10s").replace("$experiment", experiment).replace("$daemon", ANY)
        for told, query in asked.items()
    }
    return [told for told, query in plain.items() if not prometheus.ask(query)]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (a Debian package) is not installed")
def test_no_panel_is_without_data(tmp_path: Path) -> None:
    from synthetic.daemon.scene import Scene

    (tmp_path / "scene").mkdir()
    scene = Scene(tmp_path / "scene", environ={"RFTD_PRICE": "cpu=0.05 gpu=2.50"})
    with scene.host:
        _has_data_before_a_kill_and_after_it(scene, tmp_path)


def _has_data_before_a_kill_and_after_it(scene: Scene, tmp_path: Path) -> None:
    from synthetic.daemon.prometheus import prometheus_of
    from synthetic.daemon.scene import EXPERIMENT

    name = scene.submit(EXPERIMENT, *LONG)
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
        with prometheus_of(tmp_path / folder, scene.host.url, scene.data.root / "owner.token") as prometheus:
            poll(lambda: not without_data(prometheus, name), told=lambda: without_data(prometheus, name))
            assert _phases(prometheus) == {"publish", "transfer", "load", "resume"}
            drawn = prometheus.ask(f'last_over_time(rftd_rollout_reward_mean{{experiment="{name}"}}[5m])')
        means = [point.reward_mean for point in scene.until_step(name, 1).reward_curve]
        # It was scraped up to two seconds before: any step that the page draws may be the one.
        assert min(abs(float(drawn[0]["value"][1]) - mean) for mean in means) < 0.01
        if folder == "before":
            assert scene.kill("daemon", name)
            scene.until_step(name, 2)


def _phases(prometheus: Prometheus) -> set[str]:
    """The phases of syncs that somebody timed."""
    found = prometheus.ask("sum by (phase) (rftd_weight_sync_duration_seconds_count)")
    return {each["metric"]["phase"] for each in found}
