"""Prints as JSON first paint, weight and live delay of the pages in a real Chromium, over a run with fake engines.

python -P tests/bench/page_browser.py [--visits 5] [--changes 20] [--tabs 10] [--pairs 3] [--span 10]

The first paint counts from the end of the answer, the weight is what a browser without a cache transfers, the delay of
a curve is from the time of the step's event to the point in the chart, on one clock. The processor time of the daemon
with many tabs of one browser is compared with that of one tab, in pairs, while the run goes on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psutil

sys.path.append(str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from figures import tell
from synthetic.browser.window import Window, chromium
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.until import poll

LONG: Final = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 4000")
VIEWS: Final = ("", "/rollouts", "/drops", "/evaluations", "/timeline", "/history", "/lineage", "/configuration")
BEGUN_STEPS: Final = 30
TIMING: Final = """() => { const answer = performance.getEntriesByType('navigation')[0];
  const paint = performance.getEntriesByName('first-contentful-paint')[0];
  return paint ? [answer.responseEnd - answer.requestStart, paint.startTime - answer.responseEnd] : null; }"""
WATCH: Final = """() => { window.points = []; const chart = document.querySelector(".chart[data-metric='reward']");
  new MutationObserver(() => window.points.push([Number(chart.dataset.points), Date.now()]))
    .observe(chart, { attributes: true, attributeFilter: ['data-points'] }); }"""


def main() -> None:
    """Measures one daemon with one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--tabs", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--span", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), environ={"XDG_STATE_HOME": folder})
        with scene.host, chromium() as browser:
            name = scene.submit(LONG, "name=long")
            poll(lambda: scene.get(f"/v1/experiments/{name}/summary").json()["step"] >= BEGUN_STEPS)
            measured: dict[str, Any] = {"pages": _pages(scene, browser, options.visits)}
            measured["delay_ms"] = _delays(scene, browser, options.changes)
            measured["tabs"] = _tabs(scene, browser, options.tabs, options.pairs, options.span)
    tell(measured)


def _signed_in(scene: Scene, browser: Any) -> Window:
    """A tab of a browser with an empty cache, signed in, on no page."""
    window = Window(browser.new_context(viewport={"width": 1440, "height": 1000}).new_page())
    window.page.goto(scene.rftd("open", "--print").out.split()[0])
    window.page.get_by_text("live", exact=True).wait_for()
    return window


def _pages(scene: Scene, browser: Any, visits: int) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    addresses = {"/": "/", **{f"run{view}": f"/runs/long{view}" for view in VIEWS}}
    for title, address in addresses.items():
        window = _signed_in(scene, browser)
        window.page.goto("about:blank")
        window.page.context.new_cdp_session(window.page).send("Network.clearBrowserCache")
        window.transferred_bytes()
        timings = []
        weight = 0
        for visit in range(visits):
            window.page.goto(scene.host.url + address)
            poll(lambda window=window: window.page.evaluate(TIMING) is not None)  # type: ignore[misc]
            if visit == 0:
                window.page.wait_for_timeout(1500)
                weight = window.transferred_bytes()
            timings.append(window.page.evaluate(TIMING))
        figures[title] = {
            "answer_ms": round(statistics.median(timing[0] for timing in timings), 1),
            "paint_ms": round(statistics.median(timing[1] for timing in timings), 1),
            "weight_kb": round(weight / 1000, 1),
        }
        window.page.context.close()
    return figures


def _delays(scene: Scene, browser: Any, changes: int) -> dict[str, float]:
    window = _signed_in(scene, browser)
    page = window.page
    page.goto(f"{scene.host.url}/runs/long")
    page.locator(".chart[data-metric='reward'] canvas").wait_for()
    page.evaluate(WATCH)
    poll(lambda: page.evaluate("window.points.length") >= changes)
    points = page.evaluate("window.points")
    rows = scene.get(f"/v1/experiments/long/steps?metrics=none&limit=1000&first={int(points[0][0])}").json()["items"]
    completed_ms = {row["step"]: datetime.fromisoformat(row["completed_at"]).timestamp() * 1000 for row in rows}
    delays = sorted(at_ms - completed_ms[step] for step, at_ms in points if step in completed_ms)
    page.context.close()
    return {"median": round(statistics.median(delays)), "max": round(delays[-1]), "changes": len(delays)}


def _tabs(scene: Scene, browser: Any, tabs: int, pairs: int, span_s: float) -> dict[str, float]:
    """The share of a core that the daemon spends with one tab, and the median of what more tabs add."""
    window = _signed_in(scene, browser)
    pages = [window.page, *(window.page.context.new_page() for _ in range(tabs - 1))]
    shares: list[tuple[float, float]] = []
    for _ in range(pairs):
        for page in pages[1:]:
            page.goto("about:blank")
        pages[0].goto(f"{scene.host.url}/runs/long")
        alone = _share(scene, pages[0], span_s)
        for page in pages[1:]:
            page.goto(f"{scene.host.url}/runs/long")
        pages[0].bring_to_front()
        shares.append((alone, _share(scene, pages[0], span_s)))
    added = statistics.median(many - one for one, many in shares)
    return {"one": round(statistics.median(one for one, _ in shares), 3), "added": round(added, 3), "tabs": tabs}


def _share(scene: Scene, page: Any, span_s: float) -> float:
    page.wait_for_timeout(1000)
    times = psutil.Process(scene.host.pid).cpu_times()
    began_s = time.monotonic()
    page.wait_for_timeout(span_s * 1000)
    later = psutil.Process(scene.host.pid).cpu_times()
    return (later.user + later.system - times.user - times.system) / (time.monotonic() - began_s)


if __name__ == "__main__":
    main()
