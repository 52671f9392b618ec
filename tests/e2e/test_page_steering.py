"""Commands to a run by buttons of a real browser, over a daemon with real worker processes of fake engines."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pytest
from synthetic.browser.window import Window, chromium
from synthetic.daemon.hostile_texts import HOSTILE
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.daemon.http.views import annotations
from rftd.ops.errors import RftdError
from rftd.streams.events import experiment as life

E = TypeVar("E")
pytestmark = pytest.mark.e2e
LONG: Final = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 4000")
REASON: Final = '<img src=x onerror=alert(1)> it\'s "slow" $(id)'


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A daemon with a run under way."""
    folder = tmp_path_factory.mktemp("steering")
    scene = Scene(folder, environ={"XDG_STATE_HOME": str(folder / "state")})
    with scene.host:
        scene.submit(LONG, "name=long")
        scene.until_step("long", 2)
        yield scene


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of this machine."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def window(scene: Scene, browser: Any) -> Iterator[Window]:
    """A tab of the owner."""
    with signed_in(scene, browser) as window:
        yield window


@contextmanager
def signed_in(scene: Scene, browser: Any, token: str = "") -> Iterator[Window]:
    """A tab signed in with a token, else with the owner's."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    window = Window(context.new_page())
    environ = {"RFTD_TOKEN": token} if token else {}
    window.page.goto(scene.rftd("open", "--print", environ=environ).out.split()[0])
    window.page.wait_for_url(f"{scene.host.url}/")
    try:
        yield window
    finally:
        context.close()


def recorded(scene: Scene, kind: type[E]) -> list[E]:
    """The events of a kind, read in a thread: playwright's own loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(scene.events, kind).result()


def opened(window: Window, scene: Scene, act: str) -> Any:
    """The panel of a command on the run's page."""
    window.page.goto(f"{scene.host.url}/runs/long")
    window.page.locator(f"#act-{act}").click()
    return window.page.locator("#steer")


def confirmed(window: Window) -> str:
    """The receipt of the command in the open panel."""
    page = window.page
    page.locator("#steer-confirm:not([disabled])").click()
    page.locator("#receipt", has_text="recorded as event").wait_for()
    return str(page.locator("#receipt").inner_text())


def test_a_pause_says_its_consequence_and_has_one_effect_by_a_double_click(scene: Scene, window: Window) -> None:
    panel = opened(window, scene, "pause")
    panel.get_by_text("nothing new starts").wait_for()
    assert not recorded(scene, life.ExperimentPaused), "a dry run records nothing"
    panel.get_by_label("Reason, kept").fill(REASON)
    panel.locator("#steer-confirm:not([disabled])").wait_for()
    shown = shlex.split(panel.locator("#steer-cli").inner_text())
    assert shown[:2] == ["rftd", "pause"]
    assert shown[3:] == ["--reason", REASON]
    assert scene.rftd(*shown[1:], "--dry-run").status == 0
    line = panel.locator("#steer-python").inner_text()
    call = ast.parse(line).body[-1]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert [ast.literal_eval(keyword.value) for keyword in call.value.keywords] == [REASON]
    window.check_faults()
    panel.locator("#steer-confirm").dblclick()
    panel.get_by_text("recorded as event").wait_for()
    scene.until_state("long", "paused")
    assert [event.reason for event in recorded(scene, life.ExperimentPaused)] == [REASON]
    window.page.locator("#act-resume").wait_for()
    assert not window.page.locator("#act-pause").count()


def test_two_tabs_with_one_panel_cause_one_resume(scene: Scene, window: Window) -> None:
    panel = opened(window, scene, "resume")
    second = Window(window.page.context.new_page())
    also = opened(second, scene, "resume")
    for tab in (panel, also):
        tab.locator("#steer-confirm:not([disabled])").wait_for()
    # The second tab sends what it has, whatever the first one did meanwhile.
    window.page.evaluate("document.getElementById('steer-form').requestSubmit()")
    second.page.evaluate("document.getElementById('steer-form').requestSubmit()")
    for tab in (panel, also):
        tab.get_by_text("recorded as event").wait_for()
    second.page.close()
    assert len(recorded(scene, life.ExperimentResumed)) == 1
    scene.until_state("long", "running")


def test_an_answer_lost_on_its_way_is_asked_for_again_with_one_effect(scene: Scene, window: Window) -> None:
    panel = opened(window, scene, "prioritize")
    panel.get_by_label("Priority").fill("7")
    panel.locator("#steer-confirm:not([disabled])").wait_for()

    def lose(route: Any) -> None:
        route.fetch()
        route.abort()

    window.page.route(re.compile("prioritize$"), lose)
    panel.locator("#steer-confirm").click()
    panel.get_by_text("No answer").wait_for()
    window.page.unroute(re.compile("prioritize$"))
    window.complaints.clear()  # of the request without an answer
    window.page.reload()
    window.page.locator("#act-prioritize").click()
    panel.get_by_text("Sent before, without an answer").wait_for()
    assert panel.get_by_label("Priority").input_value() == "7"
    confirmed(window)
    assert [event.priority for event in recorded(scene, life.ExperimentPrioritized)] == [7]


def test_notes_labels_and_a_star_are_set_and_hostile_ones_stay_texts(scene: Scene, window: Window) -> None:
    opened(window, scene, "note").get_by_label("Note", exact=True).fill(REASON)
    shown = shlex.split(window.page.locator("#steer-cli").inner_text())
    assert shown[-2:] == ["--", REASON]
    confirmed(window)
    window.page.locator(".notes", has_text="onerror").wait_for()
    with scene.client() as client:
        for words in HOSTILE.values():
            try:
                client.send(annotations.annotate, annotations.Annotate(note=words), name="long")
            except (RftdError, UnicodeEncodeError):
                continue
    opened(window, scene, "labels").get_by_label("Labels").fill("team=<b>math</b>\nnote='\"{{7*7}}")
    confirmed(window)
    window.page.locator("a.chip", has_text="team=<b>math</b>").wait_for()
    window.page.goto(scene.host.url)
    star = window.page.get_by_label("Star on long")
    star.click()
    confirmed(window)
    window.page.locator(".star[aria-pressed='true']").wait_for()
    assert scene.page("long").experiment.summary.starred
    assert window.page.locator("script:not([src])").count() == 0
    window.check_faults()


def test_a_fork_from_a_point_is_refused_at_its_change_and_then_made(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/runs/long?fork=1")
    panel = page.locator("#steer")
    assert panel.get_by_label("Continue from step").input_value() == "1"
    panel.get_by_label("Changes").fill("buffer.batch_size=0\nnonsense=1")
    panel.locator("#consequence", has_text="nonsense").wait_for()
    panel.locator("#consequence", has_text="buffer.batch_size").wait_for()
    assert panel.locator("#steer-confirm[disabled]").count()
    panel.get_by_label("Changes").fill("buffer.total_steps=5000")
    panel.get_by_text("a new experiment of 5000 steps").wait_for()
    shown = shlex.split(panel.locator("#steer-cli").inner_text())
    assert shown[3:] == ["--at-step", "1", "-s", "buffer.total_steps=5000"]
    assert '**{"buffer.total_steps": 5000}' in panel.locator("#steer-python").inner_text()
    confirmed(window)
    panel.get_by_role("link", name="Open").click()
    page.get_by_text("forked from").wait_for()


def test_a_shift_click_on_a_curve_opens_the_fork_of_that_step(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/runs/long")
    over = page.locator(".chart[data-metric='reward'] .u-over")
    over.click(modifiers=["Shift"])
    assert int(page.locator("#steer").get_by_label("Continue from step").input_value()) > 0


def test_buttons_say_why_a_role_may_not(scene: Scene, browser: Any) -> None:
    reader = scene.rftd("token", "add", "reader", "--role", "read").out.split()[-1]
    stranger = scene.rftd("token", "add", "stranger", "--role", "submit").out.split()[-1]
    for token, words in ((reader, "has the role read, and this needs submit"), (stranger, "by somebody else")):
        with signed_in(scene, browser, token) as window:
            window.page.goto(f"{scene.host.url}/runs/long")
            window.page.locator("#refusal", has_text=words).wait_for()
            button = window.page.locator("#act-cancel")
            assert button.get_attribute("aria-disabled") == "true"
            button.click(force=True)
            assert not window.page.locator("#steer").is_visible()
            window.check_faults()
            window.page.goto(scene.host.url)
            window.page.get_by_label("Steer long", exact=True).click(force=True)
            assert window.page.locator("#steer").is_visible() == (token == stranger)
            if token == stranger:
                window.page.locator("#consequence", has_text=words).wait_for()
                assert window.page.locator("#steer-confirm[disabled]").count()


def test_a_token_removed_while_open_keeps_the_words_until_signed_in_again(scene: Scene, browser: Any) -> None:
    token = scene.rftd("token", "add", "short", "--role", "admin").out.split()[-1]
    with signed_in(scene, browser, token) as window:
        panel = opened(window, scene, "cancel")
        panel.locator("#steer-confirm:not([disabled])").wait_for()
        scene.rftd("token", "rm", "short")
        panel.get_by_label("Reason, kept").fill("enough")
        panel.get_by_text("signed out: type rftd open").wait_for()
        tab = window.page.context.new_page()
        tab.goto(scene.rftd("open", "--print").out.split()[0])
        tab.close()
        panel.locator("#steer-confirm:not([disabled])").wait_for()
        assert panel.get_by_label("Reason, kept").input_value() == "enough"
        assert not recorded(scene, life.ExperimentCancelled)
        confirmed(window)
        assert [event.reason for event in recorded(scene, life.ExperimentCancelled)] == ["enough"]
        window.page.locator(".chip", has_text="cancelled").wait_for()
