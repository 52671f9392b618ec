"""The studio in a real browser: files from elsewhere, fields, rows, a try, roles; over a third party's reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from synthetic.browser.window import Window, chromium, window_in
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.third_party import install
from synthetic.until import poll

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
SCRIPT: Final = """
if [ -d /nowhere ]; then
  BATCH=64
else
  BATCH=32
fi
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/d/train.parquet \\
  actor_rollout_ref.model.path='${oc.env:MODEL}' data.train_batch_size=$BATCH trainer.experiment_name='<img src=x>'
"""
LEARNING: Final = "explorer.rollout_model.extra_engine_args={latency_s: 0.01, skill: 0.05, gain: 0.12}"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A daemon with a reward of a third party."""
    folder = tmp_path_factory.mktemp("studio")
    install(folder, "rftd_patient", REWARD, {"rftd.rewards": {"patient": "rftd_patient:Patient"}})
    environ = {"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(folder), "RFTD_PASS_ENV": "PYTHONPATH"}
    scene = Scene(folder, environ=environ)
    with scene.host:
        scene.submit(text_of(scene), "name=former", LEARNING)
        scene.until_ended("former")
        yield scene


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of this machine."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def window(scene: Scene, browser: Any) -> Iterator[Window]:
    """A fresh tab that opened the link of `rftd studio`."""
    with studio(scene, browser) as window:
        yield window


@contextmanager
def studio(scene: Scene, browser: Any, token: str = "") -> Iterator[Window]:
    """A tab without anything kept, signed in with a token, else with the owner's."""
    environ = {"RFTD_TOKEN": token} if token else {}
    with window_in(browser, scene.rftd("studio", "--print", environ=environ).out.split()[0]) as window:
        window.page.wait_for_url(f"{scene.host.url}/studio")
        yield window


def text_of(scene: Scene) -> str:
    """An experiment of a few steps with the paths of the scene."""
    text = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 6")
    return text.replace("./", f"{scene.folder}/")


def paste(window: Window, kind: str, text: str) -> None:
    """The text as the beginning of the draft."""
    window.page.locator("#start").select_option(kind)
    window.page.get_by_label("Experiment file", exact=True).fill(text)
    window.page.get_by_role("button", name="Use this text").click()


def accepted(window: Window) -> None:
    """Returns once the daemon would accept the draft, of which nothing typed is unchecked."""
    window.page.locator("#verdict", has_text="would accept it").wait_for()
    window.page.locator("#submit[aria-disabled='false']").wait_for()


def tab_to(window: Window, id: str) -> None:
    """The element has the focus, by the tabulator key alone."""
    for _ in range(400):
        if window.page.evaluate("document.activeElement.id") == id:
            return
        window.page.keyboard.press("Tab")
    raise AssertionError(f"{id} has no place in the order of the tabulator")


def test_a_pasted_file_with_two_changes_is_checked_as_typed_and_submitted(scene: Scene, window: Window) -> None:
    page = window.page
    page.locator("#verdict", has_text="2 errors need attention: model.model_path").wait_for()
    window.check_faults()
    paste(window, "paste", text_of(scene))
    accepted(window)
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
    accepted(window)
    assert "5 steps" in page.locator("#amounts").inner_text()
    assert page.locator("#yaml .changed", has_text="total_steps: 5").count()
    page.locator("#submit[aria-disabled='false']").click()
    page.locator("#consequence", has_text="a new experiment of 5 steps").wait_for()
    page.locator("#steer-confirm:not([disabled])").click()
    page.get_by_role("link", name="Open from-studio").click()
    page.locator("h1", has_text="from-studio").wait_for()
    assert scene.until_ended("from-studio").experiment.summary.step == 5


def test_a_file_of_the_command_line_opens_with_the_errors_of_its_check(scene: Scene, browser: Any) -> None:
    text = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: many")
    path = scene.write(text.replace("name: sums", "name: '<b>opened'", 1), "opened.yaml")
    link = scene.rftd("studio", path.name, "--print").out.split()[0]
    with window_in(browser, link) as window:
        page = window.page
        page.wait_for_url(f"{scene.host.url}/studio")
        page.locator("#start option", has_text="the file opened.yaml").wait_for(state="attached")
        page.locator("#essential [data-path='buffer.total_steps'] .fault:not([hidden])").wait_for()
        refused = json.loads(scene.rftd("config", "check", path.name, "--json").out)["errors"]
        assert len(refused) > 1
        for error in refused:
            shown = page.locator(f"#essential [data-path='{error['field']}'] .fault").inner_text()
            assert error["what"] in shown
        page.locator("[id='name']").fill("opened")
        page.locator("[id='buffer.total_steps']").fill("5")
        accepted(window)
        page.locator("#yaml", has_text=f"path: {scene.folder}/train.jsonl").wait_for()
        window.check_faults()
        page.reload()
        accepted(window)
        assert page.locator("[id='name']").input_value() == "opened", "what was typed outlasts a reload"
        page.goto(f"{scene.host.url}/studio?opened=nothing")
        page.get_by_text("this file is no longer here").wait_for()


def test_an_argument_of_a_plugin_stands_in_both_modes_by_itself(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/studio?from=former")
    accepted(window)
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


def test_a_form_of_another_release_keeps_its_words_and_lets_go_of_a_lost_field(window: Window) -> None:
    page = window.page
    page.locator("#verdict:not(:empty)").wait_for()
    older = {
        "beginning": {},
        "changes": {
            "algorithm.gone_field": {"kind": "text", "text": NAME},
            "buffer.total_steps": {"kind": "number", "text": "77"},
        },
    }
    page.evaluate("draft => sessionStorage.setItem('rftd-studio', JSON.stringify(draft))", older)
    page.reload()
    lost = page.locator("#errors li", has_text="this form has no such field")
    lost.get_by_text("algorithm.gone_field").wait_for()
    lost.get_by_text(NAME).wait_for()
    assert page.locator("#errors li", has_text="gone_field").count() == 1, "the error stands beside its button"
    assert page.locator("#submit").get_attribute("aria-disabled") == "true"
    lost.get_by_role("button", name="Remove this change").click()
    lost.wait_for(state="detached")
    assert page.locator("[id='buffer.total_steps']").input_value() == "77", "what was typed is kept"
    assert "gone_field" not in page.locator("#yaml").inner_text()
    window.check_faults()


def test_the_system_is_shown_with_workers_streams_and_checks(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/system")
    page.get_by_role("region", name="Workers").get_by_text("former").first.wait_for()
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


def test_a_reader_is_told_why_nothing_can_be_submitted_or_tried(scene: Scene, browser: Any) -> None:
    token = scene.rftd("token", "add", "reader", "--role", "read").out.split()[-1]
    with studio(scene, browser, token) as window:
        page = window.page
        page.locator("#refusal", has_text="has the role read, and this needs submit").wait_for()
        page.locator("#verdict", has_text="needs submit").wait_for()
        for id in ("submit", "look", "try"):
            button = page.locator(f"#{id}")
            assert button.get_attribute("aria-disabled") == "true"
            assert "needs submit" in (button.get_attribute("title") or "")
            button.dispatch_event("click")
        assert not page.locator("#steer").is_visible()
        assert not page.locator("#trial").is_visible()


def test_a_verl_script_becomes_a_draft_with_gaps_at_their_fields(window: Window) -> None:
    page = window.page
    paste(window, "script", "python3 -m verl.trainer.main_ppo 'open")
    page.locator("#pasted-errors", has_text="run.sh:1").wait_for()
    paste(window, "script", SCRIPT)
    page.locator("#imported summary", has_text="mapped").click()
    page.locator("#imported-lines", has_text="data.train_batch_size").wait_for()
    page.locator("#essential [data-path='buffer.batch_size'] .fault:not([hidden])").wait_for()
    assert page.locator("[id='model.model_path']").input_value() == "${oc.env:MODEL}", "nothing is resolved"
    assert page.locator("[id='name']").input_value() == "<img src=x>"
    window.check_faults()
    page.locator("#start").select_option("script")
    page.get_by_label("Lines in branches to skip").fill("3")
    page.get_by_role("button", name="Use this text").click()
    page.locator("#yaml", has_text="batch_size: 32").wait_for()
    assert page.locator("script:not([src])").count() == 0


def test_a_file_too_large_is_refused_before_it_is_sent(window: Window, tmp_path: Path) -> None:
    page = window.page
    large = tmp_path / "large.yaml"
    large.write_text("#" * (5 << 20))
    page.locator("#start").select_option("paste")
    page.get_by_label("from this machine").set_input_files(large)
    page.locator("#pasted-say", has_text="too large").wait_for()
    long = tmp_path / "long.yaml"
    long.write_text("#" * (2 << 20))
    page.get_by_label("from this machine").set_input_files(long)
    poll(lambda: page.evaluate("document.getElementById('pasted').value.length > 2000000"))
    page.get_by_role("button", name="Use this text").click()
    page.locator("#pasted-say", has_text="are the most").wait_for()


def test_rows_the_first_prompt_and_a_try_are_shown_and_the_file_is_saved(
    scene: Scene, window: Window, tmp_path: Path
) -> None:
    page = window.page
    hostile = scene.folder / "hostile.jsonl"
    hostile.write_text(json.dumps({"question": "<img src=x onerror=alert(1)>=", "answer": "<b>1"}) + "\n")
    paste(window, "paste", text_of(scene).replace(f"{scene.folder}/train.jsonl", str(hostile)))
    accepted(window)
    page.locator("#look[aria-disabled='false']").click()
    page.locator("#trial pre", has_text="<img src=x onerror=alert(1)>=").first.wait_for()
    assert "1 rows in" in page.locator("#trial-say").inner_text()
    page.get_by_role("region", name="Its answer").get_by_text("<b>1").wait_for()
    page.locator("#try[aria-disabled='false']").click()
    page.locator("#trial-say", has_text="nothing was recorded").wait_for()
    page.get_by_role("region", name="Call 1").wait_for()
    assert page.locator("#try-cli").inner_text() == "rftd try sums.yaml --task 0"
    page.get_by_label("row", exact=True).fill("7")
    page.locator("#look").click()
    page.locator("#trial-say", has_text="7").wait_for()
    window.complaints.clear()  # of the refused request
    window.check_faults()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as a file").click()
    saved = tmp_path / "saved.yaml"
    download.value.save_as(saved)
    assert download.value.suggested_filename == "sums.yaml"
    assert "# " in saved.read_text()
    assert scene.rftd("config", "check", str(saved), "--here").status == 0


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_a_newcomer_gets_from_a_run_by_two_fields_and_a_prompt_to_a_rising_curve(
    scene: Scene, window: Window, by: str
) -> None:
    page = window.page
    keyboard = page.keyboard
    choice = page.locator("#start option", has_text="the run former").get_attribute("data-id")
    if by == "mouse":
        page.locator("#start").select_option(label="the run former")
    else:
        tab_to(window, "start")
        keyboard.press("End")  # the oldest run
    page.wait_for_url(f"**/studio?from={choice}")
    accepted(window)
    for id, text in (("name", f"by-{by}"), ("buffer.total_steps", "12")):
        if by == "mouse":
            page.locator(f"[id='{id}']").fill(text)
        else:
            tab_to(window, id)
            keyboard.press("Control+a")
            keyboard.type(text)
    page.locator("#yaml .changed", has_text="total_steps: 12").wait_for()
    accepted(window)
    for id in ("look", "submit"):
        page.locator(f"#{id}[aria-disabled='false']").wait_for()
        if by == "mouse":
            page.locator(f"#{id}").click()
        else:
            tab_to(window, id)
            keyboard.press("Enter")
        if id == "look":
            page.locator("#trial pre", has_text="0+0=").first.wait_for()
    page.locator("#steer-confirm:not([disabled])").wait_for()
    if by == "mouse":
        page.locator("#steer-confirm").click()
    else:
        tab_to(window, "steer-confirm")
        keyboard.press("Enter")
    link = page.get_by_role("link", name=f"Open by-{by}")
    link.wait_for()
    if by == "mouse":
        link.click()
    else:
        for _ in range(400):
            if page.evaluate("document.activeElement.textContent") == f"Open by-{by}":
                break
            keyboard.press("Shift+Tab")
        keyboard.press("Enter")
    page.locator("h1", has_text=f"by-{by}").wait_for()
    page.locator(".chart[data-metrics^='reward'] .u-over").first.wait_for()
    rewards = [point.reward_mean for point in scene.until_ended(f"by-{by}").reward_curve]
    first, last = rewards[: len(rewards) // 2], rewards[len(rewards) // 2 :]
    assert sum(map(float, last)) / len(last) > sum(map(float, first)) / len(first)
