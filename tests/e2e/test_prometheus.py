"""A real Prometheus over a live run: every panel and every recording rule has data, before a kill and after it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from synthetic.until import poll

if TYPE_CHECKING:
    from synthetic.daemon.scene import Scene

TRAINED = frozenset({"Loss", "Gradient", "KL", "Clipped tokens", "Entropy"})
"""Panels of what a trainer with a model computes; the fake one has none. Their gauges have a test of their own."""
LONG = ("stages=[]", "buffer.total_steps=2000", "explorer.eval_interval=2", "trainer.engine_args.step_s=0.2")


class Prometheus:
    """A server that scrapes one daemon every two seconds."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of a query now; nothing while it does not answer."""
        asked = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                return []
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            return []
        return found


@contextmanager
def prometheus_of(folder: Path, daemon: str) -> Iterator[Prometheus]:
    """A Prometheus with our rules, for as long as the block runs."""
    from synthetic.dashboards.files import OPS

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    target = {"job_name": "rftd", "static_configs": [{"targets": [urllib.parse.urlsplit(daemon).netloc]}]}
    every = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    rules = [str(OPS / "prometheus" / "rules.yml")]
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": every, "rule_files": rules, "scrape_configs": [target]}))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={at}"], stdout=log, stderr=log)
    try:
        yield Prometheus(f"http://{at}")
    finally:
        process.kill()
        process.wait()


def without_data(prometheus: Prometheus, experiment: str) -> list[str]:
    """The queries of panels and recording rules that a healthy run should have data for, and has none."""
    from synthetic.dashboards.files import DASHBOARDS
    from synthetic.dashboards.panel import expressions
    from synthetic.dashboards.rules import RECORDED

    asked = {name: name for name in RECORDED if "error" not in name}
    for board in DASHBOARDS.values():
        for panel, query in expressions(board):
            if not panel.on_failure and panel.title not in TRAINED:
                asked[f"{panel.title}: {query}"] = query
    plain = {
        told: query.replace("$__rate_interval", "10s").replace("$experiment", experiment)
        for told, query in asked.items()
    }
    return [told for told, query in plain.items() if not prometheus.ask(query)]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (a Debian package) is not installed")
def test_no_panel_is_without_data(embedded_scene: Scene, tmp_path: Path) -> None:
    from synthetic.daemon.scene import EXPERIMENT

    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *LONG)
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
        with prometheus_of(tmp_path / folder, scene.host.url) as prometheus:
            poll(lambda: not without_data(prometheus, name), told=lambda: without_data(prometheus, name))
            drawn = prometheus.ask(f'last_over_time(rftd_rollout_reward_mean{{experiment="{name}"}}[5m])')
        means = [point.reward_mean for point in scene.until_step(name, 1).reward_curve]
        # It was scraped up to two seconds before: any step that the page draws may be the one.
        assert min(abs(float(drawn[0]["value"][1]) - mean) for mean in means) < 0.01
        if folder == "before":
            assert scene.kill("daemon", name)
            scene.until_step(name, 2)
