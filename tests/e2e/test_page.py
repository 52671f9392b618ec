"""The page in a real browser, over a daemon with real worker processes of fake engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from synthetic.browser.window import Window, chromium, window_in
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.until import poll

pytestmark = pytest.mark.e2e
LONG: Final = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 20000")
NOTE: Final = "<img src=x onerror=alert(1)>"
LABEL: Final = "javascript:alert('{{7*7}}')"
SETTLED: Final = """document.getElementById('answer')?.dataset.experience === new URL(location).searchParams.get('id')
    && document.querySelector('#strips canvas')?.height !== 150"""
"""The answer of the address is shown, and its tokens are drawn."""
VIEWS: Final = ((800, "dark"), (1440, "light"))
MOST_BYTES: Final = 200_000
MOST_CHART_BYTES: Final = 300_000


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A daemon with a run under way that was evaluated twice; tests only read the run, or annotate it."""
    folder = tmp_path_factory.mktemp("page")
    scene = Scene(folder, environ={"XDG_STATE_HOME": str(folder / "state")})
    with scene.host:
        scene.submit(LONG, "name=long", f"labels.note={LABEL}")
        poll(lambda: len(scene.get("/v1/experiments/long/evals").json().get("items", ())) >= 2)
        yield scene


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of this machine."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def window(scene: Scene, browser: Any) -> Iterator[Window]:
    """A tab of the owner, on the list of runs."""
    with window_in(browser, scene.link()) as window:
        yield window


def test_the_printed_link_opens_an_empty_list_which_fills_by_itself(embedded_scene: Scene, browser: Any) -> None:
    scene = embedded_scene
    with window_in(browser) as window:
        page = window.page
        page.goto(scene.rftd("open", "--print").out.split()[0])
        page.wait_for_url(f"{scene.host.url}/")
        assert 0 < window.transferred_bytes() <= MOST_BYTES
        assert page.locator(".empty code").all_inner_texts() == ["rftd demo", "rftd submit mine.yaml --wait"]
        _check(window)
        name = scene.submit(LONG, "name=long", f"labels.note={LABEL}")
        row = page.locator("tr.go", has_text=name)
        row.locator("progress:not([value='0'])").wait_for()
        assert page.locator("script:not([src])").count() == 0
        row.get_by_text(f"note={LABEL}").wait_for()
        _check(window)


def test_a_search_filters_by_name_label_and_state(scene: Scene, window: Window) -> None:
    page = window.page
    page.keyboard.press("/")
    page.keyboard.type("state:completed")
    page.get_by_text("No run matches").wait_for()
    page.wait_for_url("**/?q=state%3Acompleted")
    page.locator("#q").fill("long state:running")
    page.locator("tr.go").wait_for()


def test_a_click_on_a_run_shows_its_sentence_and_curves_which_rise(scene: Scene, window: Window) -> None:
    page = window.page
    window.transferred_bytes()
    page.locator("tr.go a.name", has_text="long").click()
    page.locator("h1", has_text="long").wait_for()
    assert page.locator("#sentence").inner_text()
    chart = page.locator(".chart[data-metric='reward']")
    chart.locator("canvas").wait_for()
    assert 0 < window.transferred_bytes() <= MOST_CHART_BYTES
    drawn = int(chart.get_attribute("data-points"))
    poll(lambda: int(chart.get_attribute("data-points")) > drawn + 2)
    _check(window)
    page.get_by_label("Another figure").fill("staleness_max")
    page.keyboard.press("Enter")
    page.locator(".chart[data-metric='staleness_max'] canvas").wait_for()


def test_a_zoom_outlasts_new_points_until_a_double_click(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/runs/long")
    chart = page.locator(".chart[data-metric='reward']")
    over = chart.locator(".u-over")
    over.wait_for()
    box = over.bounding_box()
    scale = "chart => [chart.plot.scales.x.min, chart.plot.scales.x.max]"
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 30, steps=4)
    page.mouse.up()
    zoomed = chart.evaluate(scale)
    drawn = int(chart.get_attribute("data-points"))
    poll(lambda: int(chart.get_attribute("data-points")) > drawn + 2)
    assert chart.evaluate(scale) == zoomed
    over.dblclick()
    poll(lambda: chart.evaluate(scale)[1] > zoomed[1])


def test_a_click_on_a_point_opens_its_rollouts_and_keys_lead_on(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/runs/long")
    page.locator(".chart[data-metric='reward'] .u-over").click()
    page.wait_for_url("**/rollouts?step=*")
    page.locator("#answer .turn.drawn").first.wait_for()
    page.keyboard.press("w")
    page.wait_for_url("**id=*")
    address = page.url
    page.keyboard.press("]")
    page.wait_for_url(lambda url: url != address)
    page.wait_for_function(SETTLED)
    page.locator("#strips canvas").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text("token 1 ·").wait_for()
    _check(window)
    page.keyboard.press("s")
    page.locator("#star[aria-pressed='true']").wait_for()
    page.keyboard.press("n")
    page.keyboard.type(NOTE)
    page.keyboard.press("Enter")
    page.locator(".note", has_text=NOTE).wait_for()
    for view in ("drops", "evaluations"):
        page.goto(f"{scene.host.url}/runs/long/{view}")
        page.locator("h1").wait_for()
        _check(window)


def test_a_newcomer_gets_from_the_curve_to_the_weights_by_clicks_alone(window: Window) -> None:
    page = window.page
    page.locator("tr.go a.name", has_text="long").click()
    page.locator(".chart[data-metric='reward'] .u-over").click()
    page.locator("#key-b").click()
    page.wait_for_url("**id=*")
    best = page.locator("#answer .cell.big.on").inner_text().split()[0]
    rewards = page.locator("#answer a.cell.big").all_inner_texts()
    assert float(best) == max(float(reward.split()[0]) for reward in rewards)
    page.get_by_role("link", name="Evaluations").click()
    page.get_by_role("link", name="compare", exact=True).last.click()
    page.get_by_text("won", exact=False).first.wait_for()
    page.locator("article a", has_text="row").first.click()
    page.get_by_text("The same question at every version").wait_for()
    page.locator(".who a", has_text="version").last.click()
    page.locator(".nd.root", has_text="weights").wait_for()
    assert "weights" in page.url
    weights = page.url
    page.locator(".nd a").first.click()
    page.wait_for_url(lambda url: "/lineage?id=" in url and url != weights)
    page.get_by_role("link", name="Configuration").click()
    page.get_by_role("heading", name="Against another run").wait_for()
    assert window.complaints == []


def test_a_reader_sees_stars_and_notes_without_controls(scene: Scene, browser: Any) -> None:
    token = json.loads(scene.rftd("token", "add", "reader", "--role", "read", "--json").out)["token"]
    login = scene.rftd("open", "--print", environ={"RFTD_TOKEN": token})
    with window_in(browser, login.out.split()[0]) as window:
        window.page.goto(f"{scene.host.url}/runs/long/rollouts")
        window.page.locator("#answer").wait_for()
        assert window.page.locator("#star, #note").count() == 0


def test_tabs_of_a_browser_share_one_stream(scene: Scene, window: Window) -> None:
    context = window.page.context
    # The page that the link led to asks for its stream after it has loaded: that request is none of those counted.
    window.page.get_by_text("live", exact=True).wait_for()
    streams: list[str] = []
    context.on("request", lambda request: streams.append(request.url) if "/v1/stream" in request.url else None)
    window.page.goto(scene.host.url)
    window.page.get_by_text("live", exact=True).wait_for()
    tab = context.new_page()
    tab.goto(scene.host.url)
    tab.get_by_text("live", exact=True).wait_for()
    assert len(streams) == 1
    window.page.goto("about:blank")
    steps = "Number(document.querySelector('progress').value)"
    before = tab.evaluate(steps)
    poll(lambda: tab.evaluate(steps) > before + 1)
    assert len(streams) == 2
    tab.close()


def test_configuration_history_lineage_and_timeline_of_a_live_run(window: Window) -> None:
    page = window.page
    page.locator("tr.go a.name", has_text="long").click()
    page.locator("h1", has_text="long").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.get_by_role("heading", name="Configuration").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("total_steps")
    page.wait_for_url("**q=total_steps**")
    page.locator("#fields", has_text="20000").wait_for()
    assert page.get_by_text(LABEL).count() == 0
    _check(window)
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("g")
    page.keyboard.press("h")
    page.locator(".evg summary", has_text="Step").first.click()
    page.locator(".evg[open] .ev summary").first.click()
    page.locator(".ev[open] pre", has_text='"payload"').first.wait_for()
    page.get_by_role("link", name="Older").click()
    page.get_by_role("link", name="Newest").wait_for()
    _check(window)
    page.get_by_role("link", name="Lineage").first.click()
    page.locator(".nd.root", has_text="weights").wait_for()
    page.locator(".nd a", has_text="step").first.click()
    page.locator(".nd.root", has_text="step").wait_for()
    _check(window)
    page.get_by_role("link", name="Timeline").click()
    _look_at_lanes(window)


def _look_at_lanes(window: Window) -> None:
    """All of a run, then less of it by the keyboard; a span is told, and opened."""
    page = window.page
    lanes = page.locator("#lanes[data-painted]")
    lanes.wait_for()
    whole = lanes.get_attribute("data-painted")
    lanes.focus()
    for _ in range(5):
        page.keyboard.press("+")
    poll(lambda: lanes.get_attribute("data-painted") != whole)
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    poll(lambda: page.locator("#readout").inner_text().strip())
    _check(window)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("0")
    page.get_by_role("button", name="weights").click()
    _check(window)


def _check(window: Window) -> None:
    """Nothing complains, nothing foreign is asked for, axe finds nothing, light and dark, wide and narrow."""
    page: Any = window.page
    for width, scheme in VIEWS:
        page.set_viewport_size({"width": width, "height": 1000})
        page.emulate_media(color_scheme=scheme)
        assert window.faults() == [], f"{scheme}, {width}"
        assert not window.overflows(), width
    assert window.complaints == []
    assert window.foreign == []
