"""`Panel`, `Row`, `Dashboard`: what Grafana shows, and the JSON in which it reads that.

Grafana's classic schema, for its file provisioning. Where a panel stands follows from its place in the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WIDTH: Final = 24
"""Of a dashboard, in Grafana's columns."""
_BY: Final = 'instance=~"$daemon"'
OF: Final = f'{_BY},experiment="$experiment"'
"""Of one experiment; two daemons may each have one of that name, and a variable chooses among them."""
EVERY: Final = "$__rate_interval"
ANY: Final = ".*"
"""The value of `$daemon` for all of them."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel: its queries, each with the text of its legend."""

    title: str
    text: str
    queries: dict[str, str]
    """PromQL by legend."""
    unit: str = "short"
    kind: str = "timeseries"
    words: dict[int, str] | None = None
    """The words that a stat shows for each value."""
    stacked: bool = False
    width: int = 8
    on_failure: bool = False
    """True if a healthy run has no data for it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """One file."""

    uid: str
    title: str
    rows: Sequence[Row]
    of_experiment: bool = False
    """True if it is of one experiment, which a variable chooses."""
    marks: dict[str, str] = field(default_factory=dict)
    """PromQL that is not empty where a mark stands, by the mark's name."""


def expressions(dashboard: Dashboard) -> Iterator[tuple[Panel, str]]:
    """Every query of a dashboard."""
    for row in dashboard.rows:
        for panel in row.panels:
            for query in panel.queries.values():
                yield panel, query


def made(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    variables: list[dict[str, Any]] = [
        {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    if dashboard.of_experiment:
        every = {"includeAll": True, "allValue": ANY, "current": {"text": "All", "value": "$__all"}}
        variables.append(_variable("daemon", "Daemon", "label_values(rftd_experiment_state, instance)") | every)
        of = f"label_values(rftd_experiment_state{{{_BY}}}, experiment)"
        variables.append(_variable("experiment", "Experiment", of))
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["rftd"],
        "schemaVersion": 36,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {
            "list": [
                {"name": name, "datasource": SOURCE, "enable": True, "expr": query, "titleFormat": name}
                for name, query in dashboard.marks.items()
            ]
        },
        "panels": list(_placed(dashboard.rows)),
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A variable whose values are those of a label."""
    asked = {"query": query, "definition": query, "refresh": 2, "sort": 1}
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, **asked}


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number = 0
    y = 0
    for row in rows:
        number += 1
        yield {"id": number, "type": "row", "title": row.title, "panels": [], "gridPos": _place(0, y, WIDTH, 1)}
        y += 1
        x = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x = 0
                y += 8
            number += 1
            yield _panel(panel, number, _place(x, y, panel.width, 8))
            x += panel.width
        y += 8


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.words is not None:
        options = {str(value): {"text": words, "index": value} for value, words in panel.words.items()}
        defaults["mappings"] = [{"type": "value", "options": options}]
    if panel.stacked:
        defaults["custom"] = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30}
    shown = "heatmap" if panel.kind == "heatmap" else "time_series"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(65 + index), "datasource": SOURCE, "expr": query, "legendFormat": legend, "format": shown}
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }
