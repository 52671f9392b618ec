"""Dashboards and rules of `ops/`: made by code, of metrics that there are, each alert with a runbook and a case."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families
from synthetic.dashboards.experiment import EXPERIMENT, MARKS
from synthetic.dashboards.files import DASHBOARDS, OPS, texts
from synthetic.dashboards.panel import expressions, made
from synthetic.dashboards.rules import ALERTS, RECORDED

from rftd.ops.metrics import Metrics

RUNBOOKS = OPS.parent / "docs" / "runbooks.md"
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")


@pytest.mark.parametrize("path", sorted(texts()), ids=lambda path: path.name)
def test_a_file_is_what_the_code_makes(path: Path) -> None:
    """Written by tests/golden/make_dashboards.py."""
    assert path.read_text(encoding="utf-8") == texts()[path]


def test_every_query_asks_for_metrics_that_there_are() -> None:
    metrics = Metrics(version="1")
    known = set(RECORDED)
    for family in metrics.registry.collect():
        known |= {
            family.name,
            f"{family.name}_total",
            *(f"{family.name}_{part}" for part in ("bucket", "count", "sum")),
        }
    asked = [query for board in DASHBOARDS.values() for _, query in expressions(board)]
    asked += [*MARKS.values(), *RECORDED.values(), *(alert.expr for alert in ALERTS)]
    asked += [series for alert in ALERTS for series in alert.series]
    named = {name for query in asked for name in re.findall(r"\b(?:\w+:)?(?:rftd|process)_\w+(?::\w+)?", query)}
    assert named <= known
    assert len(named) > 50


def test_panels_are_told_apart_and_stand_beside_one_another() -> None:
    for board in DASHBOARDS.values():
        panels = made(board)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
        assert len(set(places)) == len(places)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
        assert len({panel["title"] for panel in panels}) == len(panels)
    assert len(made(EXPERIMENT)["annotations"]["list"]) == len(MARKS)


def test_every_alert_has_a_runbook() -> None:
    sections = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == [alert.name for alert in ALERTS]


@promtool
def test_every_alert_fires() -> None:
    for command in (("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")):
        said = subprocess.run(
            ["promtool", *command], cwd=OPS / "prometheus", capture_output=True, text=True, timeout=120, check=False
        )
        assert said.returncode == 0, said.stdout + said.stderr


@promtool
def test_what_is_exposed_is_clean() -> None:
    metrics = Metrics(version='"\n\\')
    for metric in vars(metrics).values():
        if isinstance(metric, Gauge | Counter) and metric._labelnames:
            metric.labels(*("0.5" for _ in metric._labelnames)).inc()
    exposed = metrics.expose()
    said = subprocess.run(["promtool", "check", "metrics"], input=exposed, capture_output=True, timeout=60, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    assert list(text_string_to_metric_families(exposed.decode()))
