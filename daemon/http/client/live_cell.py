"""`LiveCell`: a run in a notebook's cell, redrawn by anywidget (extra `notebook`) until the run ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rftd.daemon.http.client.progress import cell_display
from rftd.daemon.http.client.rollouts import SeriesPoint
from rftd.daemon.http.views.moment import Moment
from rftd.storage.queries.experiments import ExperimentSummary

ESM: Final = """
const SVG = "http://www.w3.org/2000/svg";

// Every text is set as text, never as markup: names and reasons may come from strangers.
function element(name, text, style) {
  const made = document.createElement(name);
  made.textContent = text;
  made.style.cssText = style || "";
  return made;
}

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, setting] of Object.entries(attributes)) made.setAttribute(key, String(setting));
  return made;
}

function curve({ label, points }) {
  const width = 320, height = 90;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  const finite = points.filter(([, mean]) => mean !== null);
  if (!finite.length) return drawn;
  const lows = finite.map(([, mean, low]) => (low === null ? mean : low));
  const highs = finite.map(([, mean, , high]) => (high === null ? mean : high));
  const low = Math.min(...lows), high = Math.max(...highs);
  const first = finite[0][0], last = finite[finite.length - 1][0];
  const across = (x) => 4 + ((width - 8) * (x - first)) / (last - first || 1);
  const up = (y) => height - 18 - ((height - 36) * (y - low)) / (high - low || 1);
  const edge = finite.map(([x], index) => `${across(x)},${up(highs[index])}`)
    .concat(finite.map(([x], index) => `${across(x)},${up(lows[index])}`).reverse());
  drawn.append(svg("polygon", { points: edge.join(" "), fill: "#3b7dd8", opacity: 0.18 }));
  const line = finite.map(([x, mean]) => `${across(x)},${up(mean)}`).join(" ");
  drawn.append(svg("polyline", { points: line, fill: "none", stroke: "#3b7dd8", "stroke-width": 1.5 }));
  const newest = finite[finite.length - 1][1];
  const captions = [
    [`${label}  ${newest.toPrecision(4)}`, 11],
    [`${low.toPrecision(4)} to ${high.toPrecision(4)}; ${first} to ${last}`, height - 3],
  ];
  for (const [text, y] of captions) {
    const caption = svg("text", { x: 4, y, "font-size": 10, fill: "currentColor" });
    caption.textContent = text;
    drawn.append(caption);
  }
  return drawn;
}

function render({ model, el }) {
  const draw = () => {
    const view = model.get("view");
    const bar = element("div", "", "height:4px;background:rgba(128,128,128,.3)");
    bar.append(element("div", "", `height:4px;background:#3b7dd8;width:${100 * (view.share || 0)}%`));
    const curves = element("div", "");
    for (const described of view.curves || []) curves.append(curve(described));
    const lines = (view.lines || []).map((text) => element("div", text));
    el.replaceChildren(element("b", view.title || ""), bar, ...lines, curves);
  };
  model.on("change:view", draw);
  draw();
}

export default { render };
"""
"""The module drawing a view, run by the notebook's page: no library, and no request to anywhere."""


class LiveCell:
    """A cell with one run; `update` redraws the cell."""

    def __init__(self, widget: Any) -> None:
        """`widget` is the displayed anywidget."""
        self._widget = widget

    @classmethod
    def shown(cls) -> LiveCell | None:
        """Displays an empty cell; None outside of a notebook, and without anywidget."""
        display = cell_display()
        if display is None:
            return None
        try:
            import anywidget
            import traitlets
        except ImportError:
            return None

        class RunCell(anywidget.AnyWidget):
            """The widget of a run, with the view as its only state."""

            _esm = ESM
            view = traitlets.Dict().tag(sync=True)

        widget = RunCell()
        display.display(widget)
        return cls(widget)

    def update(self, summary: ExperimentSummary, moment: Moment, points: Sequence[SeriesPoint]) -> None:
        """Redraws the cell with a summary, the present moment, and the course of some figures."""
        self._widget.view = view_of(summary, moment, points)


def view_of(summary: ExperimentSummary, moment: Moment, points: Sequence[SeriesPoint]) -> dict[str, Any]:
    """Returns the content of the cell as plain JSON: title, share, lines, and curves with bands."""
    words = (moment.sentence, moment.progress, moment.pace_words, moment.work_words)
    pause = None if moment.pause is None else moment.pause.words
    curves: dict[str, list[list[float | None]]] = {}
    for point in points:
        curves.setdefault(point.metric, []).append([point.at, point.mean, point.p10, point.p90])
    return {
        "title": f"{summary.name}  {summary.state}",
        "share": summary.step / summary.total_steps if summary.total_steps else 0.0,
        "lines": list(dict.fromkeys(line for line in (*words, pause) if line)),
        "curves": [{"label": metric, "points": course} for metric, course in curves.items()],
    }
