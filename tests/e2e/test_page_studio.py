"""The studio and the system's page in a real browser, over a daemon with a third party's reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from synthetic.browser.window import Window, chromium
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.third_party import install

pytestmark = pytest.mark.e2e
REWARD: Final = """
from typing import Annotated
from msgspec import Meta
from rftd.streams.spec.declaration import InUnit

Wait = Annotated[float, InUnit("s"), Meta(ge=1, description="Longest <b>wait</b>.")]

class Patient:
    def __init__(self, wait: Wait = 7.0) -> None:
        self.wait = wait
    def score(self, response, truth, task):
        return 1.0
"""
NAME: Final = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A daemon with a reward of a third party."""
    folder = tmp_path_factory.mktemp("studio")
    install(folder, "rftd_patient", REWARD, {"rftd.rewards": {"patient": "rftd_patient:Patient"}})
    environ = {"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(folder), "RFTD_PASS_ENV": "PYTHONPATH"}
    scene = Scene(folder, environ=environ)
    with scene.host:
        yield scene


@pytest.fixture(scope="module")
def window(scene: Scene) -> Iterator[Window]:
    """A tab that opened the link of `rftd studio`."""
    with chromium() as browser:
        window = Window(browser.new_context(viewport={"width": 1440, "height": 1000}).new_page())
        window.page.goto(scene.rftd("studio", "--print").out.split()[0])
        window.page.wait_for_url(f"{scene.host.url}/studio")
        yield window


def text_of(scene: Scene) -> str:
    """An experiment of a few steps with the paths of the scene."""
    text = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 6")
    return text.replace("./", f"{scene.folder}/")


def test_a_pasted_file_with_two_changes_is_checked_as_typed_and_submitted(scene: Scene, window: Window) -> None:
    page = window.page
    page.locator("#verdict", has_text="model.model_path").wait_for()
    window.check_faults()
    page.locator("#start").select_option("paste")
    page.get_by_label("Experiment file", exact=True).fill(text_of(scene))
    page.get_by_role("button", name="Use this text").click()
    page.locator("#verdict", has_text="would accept it").wait_for()
    page.locator("[id='name']").fill(NAME)
    page.locator("#essential [data-path='name'] .fault:not([hidden])").wait_for()
    page.locator("[id='name']").fill("from-studio")
    steps = page.locator("[id='buffer.total_steps']")
    steps.fill("many")
    fault = page.locator("#essential [data-path='buffer.total_steps'] .fault")
    fault.wait_for()
    path = scene.write(text_of(scene))
    refused = scene.rftd("config", "check", str(path), "-s", "buffer.total_steps=many", "--json", "--here")
    [error] = json.loads(refused.out)["errors"]
    assert error["what"] in fault.inner_text()
    page.reload()
    fault.wait_for()
    assert steps.input_value() == "many", "what was typed outlasts a reload"
    steps.fill("5")
    page.locator("#verdict", has_text="would accept it").wait_for()
    assert "5 steps" in page.locator("#amounts").inner_text()
    assert page.locator("#yaml .changed", has_text="total_steps: 5").count()
    page.locator("#submit[aria-disabled='false']").click()
    page.locator("#consequence", has_text="a new experiment of 5 steps").wait_for()
    page.locator("#steer-confirm:not([disabled])").click()
    page.get_by_role("link", name="Open from-studio").click()
    page.locator("h1", has_text="from-studio").wait_for()
    assert scene.until_ended("from-studio").experiment.summary.step == 5


def test_an_argument_of_a_plugin_stands_in_both_modes_by_itself(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/studio?from=from-studio")
    page.locator("#verdict", has_text="would accept it").wait_for()
    page.get_by_role("button", name="Expert").click()
    page.get_by_label("Find a field").fill("taskset.default_reward_fn_type")
    page.locator("[id='all.buffer.explorer_input.taskset.default_reward_fn_type']").fill("patient")
    for mode in ("Expert", "Beginner"):
        page.get_by_role("button", name=mode).click()
        field = page.locator("#arguments [data-path$='reward_fn_args.wait']")
        field.get_by_text("Longest <b>wait</b>. In s. At least 1.").wait_for()
        assert field.locator("input").get_attribute("placeholder") == "7.0"
    field.locator("input").fill("0")
    field.locator(".fault", has_text="wait").wait_for()
    field.locator("input").fill("2")
    page.locator("#verdict", has_text="would accept it").wait_for()
    page.locator("#yaml", has_text="wait: 2").wait_for()
    window.check_faults()


def test_the_system_is_shown_with_workers_streams_and_checks(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/system")
    page.get_by_role("region", name="Workers").get_by_text("trainer").first.wait_for()
    assert page.get_by_role("region", name="Streams").locator("tbody tr").count() > 5
    page.get_by_text("you are owner").wait_for()
    for width, scheme in ((1440, "light"), (800, "dark")):
        page.set_viewport_size({"width": width, "height": 1000})
        page.emulate_media(color_scheme=scheme)
        window.check_faults()
        page.goto(f"{scene.host.url}/studio")
        page.locator("#verdict:not(:empty)").wait_for()
        window.check_faults()
        page.goto(f"{scene.host.url}/system")


def test_a_reader_is_told_why_nothing_can_be_submitted(scene: Scene, window: Window) -> None:
    token = scene.rftd("token", "add", "reader", "--role", "read").out.split()[-1]
    tab: Any = window.page.context.browser.new_context().new_page()
    tab.goto(scene.rftd("studio", "--print", environ={"RFTD_TOKEN": token}).out.split()[0])
    tab.locator("#refusal", has_text="has the role read, and this needs submit").wait_for()
    tab.locator("#verdict", has_text="needs submit").wait_for()
    assert tab.locator("#submit").get_attribute("aria-disabled") == "true"
    tab.context.close()
