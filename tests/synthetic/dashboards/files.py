"""The files below `ops/` that are made of dashboards and rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import yaml

from synthetic.dashboards.experiment import EXPERIMENT
from synthetic.dashboards.overview import OVERVIEW, STREAMS
from synthetic.dashboards.panel import made
from synthetic.dashboards.rule_cases import made_cases
from synthetic.dashboards.rules import made_rules

OPS: Final = Path(__file__).parents[3] / "ops"
DASHBOARDS: Final = {"overview": OVERVIEW, "experiment": EXPERIMENT, "streams": STREAMS}
_NOTE: Final = "# Written by tests/golden/make_dashboards.py; do not edit.\n"


def texts() -> dict[Path, str]:
    """The text of each file."""
    found = {
        OPS / "grafana" / f"{name}.json": json.dumps(made(dashboard), indent=1) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }
    for name, content in (("rules", made_rules()), ("rules_test", made_cases())):
        plain = yaml.safe_dump(content, sort_keys=False, width=1000, allow_unicode=True)
        found[OPS / "prometheus" / f"{name}.yml"] = _NOTE + plain
    return found
