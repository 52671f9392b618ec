"""`run.watch()`: a widget in a notebook's cell, progress as text elsewhere; hostile names stay text."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic.daemon.command_line import Served

import rftd
from rftd.daemon.http.client import live_cell

anywidget = pytest.importorskip("anywidget")

DRAWING = """
import module from "./cell.mjs";
const seen = [];
const made = (name) => ({
  name, style: {}, children: [], textContent: "",
  setAttribute(key, setting) { this[key] = setting; },
  append(...nodes) { this.children.push(...nodes); },
  replaceChildren(...nodes) { this.children = nodes; },
  set innerHTML(markup) { throw new Error("markup"); },
});
globalThis.document = { createElement: made, createElementNS: (space, name) => made(name) };
const el = made("div");
const view = JSON.parse(process.argv[2]);
module.render({ model: { get: () => view, on: (event, draw) => seen.push(event) }, el });
console.log(JSON.stringify({ seen, el }));
"""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The widgets displayed by a notebook."""
    import IPython
    import IPython.display

    displayed: list[Any] = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", lambda shown, **options: displayed.append(shown))
    return displayed


def test_a_watched_run_is_drawn_by_a_widget_until_its_end(served: Served, shown: list[Any]) -> None:
    with rftd.Client(served.url) as client:
        summary = client.run("small").watch("loss", "tokens", points=4)
    assert summary.state == "completed"
    [widget] = shown
    assert isinstance(widget, anywidget.AnyWidget)
    view = widget.view
    assert view["title"] == "small  completed"
    assert view["share"] == 1.0
    assert [curve["label"] for curve in view["curves"]] == ["loss", "tokens"]
    assert all(len(point) == 4 for curve in view["curves"] for point in curve["points"])
    assert "completed" in view["lines"][0]
    assert json.loads(json.dumps(view, allow_nan=False)) == view


def test_without_a_notebook_or_anywidget_the_progress_is_text(
    served: Served, capfd: pytest.CaptureFixture[str], shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with rftd.Client(served.url) as client:
        monkeypatch.setitem(__import__("sys").modules, "anywidget", None)
        assert client.run("small").watch().state == "completed"
        assert len(shown) == 1
        assert not isinstance(shown[0], anywidget.AnyWidget)
        monkeypatch.undo()
        assert client.run("small").watch().state == "completed"
    assert "small  completed" in capfd.readouterr().err


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_the_module_draws_curves_and_sets_every_text_as_text(tmp_path: Path) -> None:
    (tmp_path / "cell.mjs").write_text(live_cell.ESM)
    (tmp_path / "draw.mjs").write_text(DRAWING)
    hostile = "<img src=x onerror=alert(1)>"
    curves = [{"label": hostile, "points": [[1, 0.5, 0.2, 0.9], [2, None, None, None], [3, 0.75, 0.5, 1.0]]}]
    view = {"title": hostile, "share": 0.5, "lines": [hostile], "curves": [*curves, {"label": "none", "points": []}]}
    line = ["node", str(tmp_path / "draw.mjs"), json.dumps(view)]
    said = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, said.stderr
    drawn = json.loads(said.stdout)
    assert drawn["seen"] == ["change:view"]
    title, bar, text, course = drawn["el"]["children"]
    assert (title["textContent"], text["textContent"]) == (hostile, hostile)
    assert bar["children"][0]["style"]["cssText"].endswith("width:50%")
    polygon, polyline, caption, _ = course["children"][0]["children"]
    assert len(polyline["points"].split()) == 2
    assert len(polygon["points"].split()) == 4
    assert caption["textContent"].startswith(hostile)
    assert course["children"][1]["children"] == []
