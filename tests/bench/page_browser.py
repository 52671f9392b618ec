"""Prints as JSON first paint, weight, live delay and scrolling of the pages in a real Chromium.

python -P tests/bench/page_browser.py [--runs 100] [--steps 10000] [--experiences 1000000] [--visits 5] [--span 10]

The first paint counts from the end of the answer, the weight is what a browser without a cache transfers. Work of the
main thread is processor time of its thread, divided by the frames drawn meanwhile. The delay of a curve is from the
time of the step's event to the point in the chart, on one clock, over a run with fake engines; the processor time of
its daemon with ten tabs of one browser is compared with that of one tab, in pairs. A browser without a window shows all
its tabs at once, so a script tells nine of them that they are hidden, and the ten shown at once are measured beside.
Copied experiences have no payload in the log, so the page of rollouts shows the oldest ones, which have theirs.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psutil

sys.path.append(str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from figures import quantiles, read_options, tell
from page_costs import QuietOperations
from page_tables import PageTables
from synthetic.browser.window import Window, chromium, window_in
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.served_daemon import served_daemon
from synthetic.log.recorder import Recorder
from synthetic.log.text_run import SyntheticRollout, TextRun, text_spec, tokenizer_json
from synthetic.until import poll

from rftd.daemon.http.api.app import make_app
from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.ops.bound_socket import bind, url_of
from rftd.ops.http_server import serving_http
from rftd.ops.metrics import Metrics
from rftd.storage.files.artifacts import ArtifactStore

LONG: Final = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 20000")
VIEWS: Final = (
    "",
    "/rollouts?order=oldest",
    "/drops",
    "/evaluations",
    "/timeline",
    "/history",
    "/lineage",
    "/configuration",
)
LONG_TOKENS: Final = 150_000
GROUP: Final = 64
FRAMES: Final = 120
BEGUN_STEPS: Final = 30
PAIRS: Final = 3
CHANGES: Final = 20
TABS: Final = 10
HIDDEN: Final = "Object.defineProperty(Document.prototype, 'hidden', { get: () => true })"
TIMING: Final = """() => { const answer = performance.getEntriesByType('navigation')[0];
  const paint = performance.getEntriesByName('first-contentful-paint')[0];
  return paint ? [answer.responseEnd - answer.requestStart, paint.startTime - answer.responseEnd] : null; }"""
WATCH: Final = """() => { window.points = []; const chart = document.querySelector(".chart[data-metric='reward']");
  new MutationObserver(() => window.points.push([Number(chart.dataset.points), Date.now()]))
    .observe(chart, { attributes: true, attributeFilter: ['data-points'] }); }"""
DRAWN: Final = """() => document.querySelector('#strips canvas')?.height !== 150
  && document.querySelector('.turn.drawn')"""
SCROLL: Final = """frames => new Promise(done => { let left = frames; const step = () => {
  if (!left--) { done(frames); return; } scrollBy(0, 400); requestAnimationFrame(step); };
  requestAnimationFrame(step); })"""
PAN: Final = """frames => new Promise(done => { const pan = document.querySelector('#strips .pan'); let left = frames;
  const step = () => { if (!left--) { done(frames); return; } pan.value = String(Number(pan.value) + 60);
    pan.dispatchEvent(new Event('input')); requestAnimationFrame(step); };
  requestAnimationFrame(step); })"""


def main() -> None:
    """Measures tables of many runs, a long rollout, and a live run."""
    options = read_options(__doc__, runs=100, steps=10_000, experiences=1_000_000, visits=5, span=10.0)
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        tables = PageTables(Path(folder) / "tables.db")
        asyncio.run(tables.write())
        tables.add_ended(options.runs, options.steps)
        tables.lengthen(options.experiences)
        with _served(tables, Path(folder)) as url, chromium() as browser:
            measured["pages"] = _pages(url, browser, options.visits)
            measured["rollouts"] = _rollouts(browser, Path(folder))
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        measured["live"] = _live(browser, Path(folder), options.span)
    tell(measured)


@contextmanager
def _served(tables: PageTables, folder: Path) -> Iterator[str]:
    """The address of an API over the tables, open to all, in a thread."""
    told: dict[str, Any] = {}
    up = threading.Event()

    async def serve() -> None:
        told["stop"], told["loop"] = asyncio.Event(), asyncio.get_running_loop()
        bound = bind("127.0.0.1", 0)
        app = make_app(
            operations=QuietOperations(tables.log),
            log=tables.log,
            engine=tables.engine,
            projector=tables.projector,
            feed=MetricsFeed(Metrics(version="bench")),
            doorkeeper=Doorkeeper(None),
            daemon_log=folder / "daemon.log",
        )
        async with serving_http(app, bound):
            told["url"] = url_of(bound)
            up.set()
            await told["stop"].wait()
        bound.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    poll(lambda: up.is_set() or not thread.is_alive())
    try:
        yield told["url"]
    finally:
        told["loop"].call_soon_threadsafe(told["stop"].set)
        thread.join()


def _pages(url: str, browser: Any, visits: int) -> dict[str, dict[str, float]]:
    """Answer, first paint and weight of each page, in medians of the visits."""
    measured: dict[str, dict[str, float]] = {}
    for title, path in {"list": "/", **{f"run{view}": f"/runs/large{view}" for view in VIEWS}}.items():
        timings = []
        with window_in(browser) as window:
            for visit in range(visits + 1):
                window.page.goto(url + path)
                poll(lambda window=window: window.page.evaluate(TIMING) is not None)  # type: ignore[misc]
                if visit == 0:
                    # The first visit fills caches of the daemon, and is the one that transfers scripts.
                    window.page.wait_for_timeout(2500)
                    weight = window.transferred_bytes()
                else:
                    timings.append(window.page.evaluate(TIMING))
            assert window.complaints == [], (title, window.complaints)
        measured[title] = {
            "answer_ms": round(statistics.median(timing[0] for timing in timings), 1),
            "paint_ms": round(statistics.median(timing[1] for timing in timings), 1),
            "most_paint_ms": round(max(timing[1] for timing in timings), 1),
            "weight_kb": round(weight / 1000, 1),
        }
    return measured


def _rollouts(browser: Any, folder: Path) -> dict[str, Any]:
    """A group of 64 with a rollout of 150,000 tokens: until text and strips are drawn, and work of a frame."""
    spec = text_spec(folder, "texts")
    store = ArtifactStore(Path(spec.job_dir) / "artifacts")
    copies = ("", store.put(tokenizer_json().encode()))
    run = TextRun(Recorder(), name="texts", job_dir=spec.job_dir, spec=spec, tokenizers=copies, repeat=GROUP)
    run.begin()
    run.warm_up()
    words = "so the sum of both is five, and that is what was asked for. "
    text = (words * (LONG_TOKENS // len(words) + 1))[:LONG_TOKENS]
    long = SyntheticRollout(parts=((text, True),))
    short = [SyntheticRollout(parts=((words * (number % 7 + 1), True),)) for number in range(GROUP)]
    run.group([long, *short[1:]])
    run.group(short)
    measured: dict[str, Any] = {}
    with served_daemon(folder, run=run) as served, window_in(browser) as window:
        rows = window.page.request.get(f"{served.url}/v1/experiments/{run.id}/experiences?limit=1000").json()["items"]
        longest = max(rows, key=lambda row: row["response_tokens"])
        other = next(row for row in rows if row["group"] != longest["group"])
        for title, id in (("tokens_150000", longest["id"]), ("group_of_64", other["id"])):
            measured[title] = _opened(window, f"{served.url}/runs/{run.id}/rollouts?id={id}")
    return measured


def _opened(window: Window, address: str) -> dict[str, Any]:
    page = window.page
    opened_ms = []
    for _ in range(4):
        page.goto("about:blank")
        begun_s = time.monotonic()
        page.goto(address, wait_until="commit")
        page.wait_for_function(DRAWN)
        opened_ms.append((time.monotonic() - begun_s) * 1000)
    figures: dict[str, Any] = {"opens_ms": round(statistics.median(opened_ms[1:])), "first_ms": round(opened_ms[0])}
    for title, script in (("scroll", SCROLL), ("pan", PAN)):
        page.wait_for_timeout(500)
        works = []
        for _ in range(3):
            page.evaluate("scrollTo(0, 0)")
            before = _main_threads_s(page)
            page.evaluate(script, FRAMES)
            after = _main_threads_s(page)
            # The page's own process is the one that worked most.
            works.append(1000 * max(after[id] - before.get(id, 0.0) for id in after) / FRAMES)
        figures[f"{title}_ms_of_a_frame"] = round(statistics.median(works), 2)
    return figures


def _main_threads_s(page: Any) -> dict[int, float]:
    """The processor time of the main thread of each process that draws pages, by its id."""
    session = page.context.browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    times: dict[int, float] = {}
    for id in (process["id"] for process in processes if process["type"] == "renderer"):
        [main_thread] = [thread for thread in psutil.Process(id).threads() if thread.id == id]
        times[id] = main_thread.user_time + main_thread.system_time
    return times


def _live(browser: Any, folder: Path, span_s: float) -> dict[str, Any]:
    """The delay of a curve of a run under way, and what more tabs cost its daemon."""
    scene = Scene(folder, environ={"XDG_STATE_HOME": str(folder)})
    with scene.host:
        name = scene.submit(LONG, "name=long")
        scene.until_step(name, BEGUN_STEPS)
        tabs = {name: _tabs(scene, browser, span_s, script) for name, script in (("hidden", HIDDEN), ("shown", ""))}
        return {"delay_ms": _delays(scene, browser), "tabs": tabs}


def _delays(scene: Scene, browser: Any) -> dict[str, float]:
    with window_in(browser, scene.link()) as window:
        page = window.page
        page.goto(f"{scene.host.url}/runs/long")
        page.locator(".chart[data-metric='reward'] canvas").wait_for()
        page.evaluate(WATCH)
        poll(lambda: page.evaluate("window.points.length") >= CHANGES)
        points = page.evaluate("window.points")
    rows = scene.get(f"/v1/experiments/long/steps?metrics=none&limit=1000&first={int(points[0][0])}").json()["items"]
    completed_ms = {row["step"]: datetime.fromisoformat(row["completed_at"]).timestamp() * 1000 for row in rows}
    delays = [at_ms - completed_ms[step] for step, at_ms in points if step in completed_ms]
    return {"changes": len(delays), **quantiles(delays, 0.5, 0.95, digits=0)}


def _tabs(scene: Scene, browser: Any, span_s: float, script: str) -> dict[str, float]:
    """The share of a core that the daemon spends with one tab, and the median of what more tabs add."""
    address = f"{scene.host.url}/runs/long"
    shares: list[tuple[float, float]] = []
    with window_in(browser, scene.link()) as window:
        shown, *hidden = [window.page, *(window.page.context.new_page() for _ in range(TABS - 1))]
        for page in hidden:
            page.add_init_script(script)
        for _ in range(PAIRS):
            for page in hidden:
                page.goto("about:blank")
            shown.goto(address)
            alone = _share(scene, shown, span_s)
            for page in hidden:
                page.goto(address)
            shown.bring_to_front()
            shares.append((alone, _share(scene, shown, span_s)))
    added = statistics.median(many - one for one, many in shares)
    return {"one": round(statistics.median(one for one, _ in shares), 3), "added": round(added, 3), "tabs": TABS}


def _share(scene: Scene, page: Any, span_s: float) -> float:
    page.wait_for_timeout(2000)
    before = psutil.Process(scene.host.pid).cpu_times()
    begun_s = time.monotonic()
    page.wait_for_timeout(span_s * 1000)
    after = psutil.Process(scene.host.pid).cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - begun_s)


if __name__ == "__main__":
    main()
