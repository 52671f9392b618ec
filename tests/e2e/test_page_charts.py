"""Curves and the timeline in a real browser, over a log of runs made up: several runs, reward parts, many slots."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from synthetic.browser.window import Window, chromium, window_in
from synthetic.daemon.command_line import Served
from synthetic.daemon.served_daemon import served_daemon
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.streams.events.batch import ExperienceRetired
from rftd.streams.figures.step_figures import REWARDS

pytestmark = pytest.mark.e2e
HOSTILE: Final = "<img src=x onerror=alert(1)>"
VIEWS: Final = ("", "/rollouts", "/drops", "/evaluations", "/timeline", "/history", "/lineage", "/configuration")
LANES: Final = 2 * 40
"""Rollouts under way at once on two explorers."""


class ChartedRun(SyntheticRun):
    """Steps with a KL over eight decades and two parts of the reward, the second one named by a stranger."""

    def train(self) -> None:
        """One step of two groups."""
        rewards = {f"{REWARDS}/{name}": 0.1 * self.version for name in ("mean", "min", "max", "p10", "p50", "p90")}
        parts = {"reward/accuracy/mean": 0.5, f"reward/{HOSTILE}/mean": 0.25}
        self.figures = {"actor/kl_loss": 10.0 ** -(self.version % 9), **rewards, **parts}
        super().train()


class CrowdedRun(SyntheticRun):
    """Groups of forty rollouts of ten minutes each, of which every second group becomes too old."""

    def train(self) -> None:
        """One step of a group each ten minutes; the other group is dropped."""
        stale = tuple(member.member.experience for member in self.waiting[self.repeat :])
        del self.waiting[self.repeat :]
        now_ns = self.recorder.clock.now_ns()
        retired = ExperienceRetired(experiences=stale, reason="stale", uses=0, decided_at_ns=now_ns)
        self.recorder.write(retired, self.id, role="planner")
        self.plan(stage=1, take=self.repeat)
        self.complete(stage=1, items=self.repeat)
        self.publish(0)
        self.recorder.clock.advance(620.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon, open to all, with three ended runs and one without a step."""
    recorder = Recorder()
    runs = [
        ChartedRun(recorder, name="first", steps=12, faults=False),
        ChartedRun(recorder, name=HOSTILE, steps=8, seed=1, faults=False),
        CrowdedRun(recorder, name="crowded", steps=6, repeat=LANES // 2, duration_s=600.0, faults=False),
    ]
    for run in runs:
        run.write()
    SyntheticRun(recorder, name="unborn").begin()
    with served_daemon(tmp_path_factory.mktemp("charts"), run=runs[0]) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of this machine."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def window(browser: Any) -> Iterator[Window]:
    """A tab of a new profile."""
    with window_in(browser) as window:
        yield window


def test_two_runs_lie_over_each_other_with_the_differences_of_their_files(served: Served, window: Window) -> None:
    page = window.page
    page.goto(f"{served.url}/runs/first")
    page.locator(".chart[data-metric='reward'] canvas").wait_for()
    page.get_by_label("Another run over this one").fill(HOSTILE)
    page.keyboard.press("Enter")
    chart = page.locator(".chart[data-metric='reward']")
    chart.locator("canvas").wait_for()
    assert chart.evaluate("chart => chart.plot.data.length") == 3
    assert chart.locator(".hint > span").all_inner_texts() == ["first\n1.3", f"{HOSTILE}\n0.9"]
    page.locator("#differences", has_text="total_steps").wait_for()
    assert page.locator(".chart[data-split]").is_hidden()
    assert page.locator("img").count() == 0
    window.check_faults()
    page.get_by_label(f"leave out {HOSTILE}").click()
    page.locator(".chart[data-metric='reward'] canvas").wait_for()
    assert page.locator("#differences, #laid-over").count() == 0
    page.goto(f"{served.url}/runs/first?over=nothing")
    page.get_by_text("nothing").first.wait_for()
    page.locator(".chart[data-metric='reward'] canvas").wait_for()
    assert window.complaints == []


def test_parts_of_the_reward_and_of_the_trainers_time_have_their_names(served: Served, window: Window) -> None:
    page = window.page
    page.goto(f"{served.url}/runs/first")
    parts = page.locator(".chart[data-split]")
    parts.locator("canvas").wait_for()
    assert parts.locator(".hint > span").all_inner_texts() == ["accuracy\n0.5", f"{HOSTILE}\n0.25"]
    times = page.locator(".chart[data-stack]")
    times.locator("canvas").wait_for()
    names = [text.split()[0] for text in times.locator(".hint > span").all_inner_texts()]
    assert names == ["trained", "awaited", "prepared"]
    tops = times.evaluate("chart => chart.plot.data[1].filter(y => y !== null)")
    assert tops == pytest.approx([1.0] * len(tops), abs=1e-3)
    window.check_faults()


def test_a_logarithmic_axis_has_at_most_five_powers_of_ten(served: Served, window: Window) -> None:
    page = window.page
    page.goto(f"{served.url}/runs/first")
    chart = page.locator(".chart[data-log]")
    chart.locator("canvas").wait_for()
    ticks = chart.evaluate("chart => chart.plot.axes[1]._splits")
    assert 2 <= len(ticks) <= 5
    assert all(abs(exponent - round(exponent)) < 1e-9 for exponent in map(math.log10, ticks))


def test_above_64_slots_the_lanes_are_a_carpet_whose_rollouts_are_told(served: Served, window: Window) -> None:
    page = window.page
    page.goto(f"{served.url}/runs/crowded/timeline")
    lanes = page.locator("#lanes[data-painted]")
    lanes.wait_for()
    assert lanes.get_attribute("data-carpet") == "true"
    assert int(lanes.get_attribute("data-lanes")) > 64
    assert lanes.bounding_box()["height"] < 720
    lanes.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.locator("#readout", has_text="rollout").wait_for()
    window.check_faults()


def test_nan_is_named_and_a_run_without_a_step_has_every_page(served: Served, window: Window) -> None:
    page = window.page
    page.goto(f"{served.url}/runs/first?metric=bad")
    page.get_by_text("no finite number").wait_for()
    page.get_by_text("NaN or infinite in 14 steps").wait_for()
    for view in VIEWS:
        response = page.goto(f"{served.url}/runs/unborn{view}")
        assert response.status == 200, view
        page.locator("h1").wait_for()
        assert not window.overflows(), view
    page.goto(f"{served.url}/runs/unborn")
    page.get_by_text("not recorded yet").first.wait_for()
    page.route(re.compile("/v1/series"), lambda route: None)  # answered never: what is not read is not missing
    page.goto(f"{served.url}/runs/unborn")
    page.get_by_text("reading…").first.wait_for()
    assert not page.get_by_text("not recorded").count()
    page.unroute(re.compile("/v1/series"))
    assert window.complaints == []


def test_keys_alone_lead_to_every_page_of_a_run(served: Served, window: Window) -> None:
    page = window.page
    page.goto(served.url)
    page.get_by_text("live", exact=True).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    for key, view in zip(
        "adethco", ("rollouts", "drops", "evaluations", "timeline", "history", "configuration", ""), strict=True
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"**/runs/*/{view}" if view else re.compile("/runs/[^/]+$"))
        page.locator("h1").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip", view
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("light or dark").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert window.complaints == []


def test_a_tab_of_another_release_is_told_to_reload(served: Served, window: Window) -> None:
    page = window.page
    page.goto(f"{served.url}/runs/first")
    page.get_by_text("live", exact=True).wait_for()
    page.evaluate("document.body.dataset.release = 'older'")
    page.evaluate("htmx.ajax('GET', location.pathname, { target: '#present', select: '#present', swap: 'outerHTML' })")
    page.locator("#away", has_text="another release than this tab").wait_for()
    assert window.complaints == []
