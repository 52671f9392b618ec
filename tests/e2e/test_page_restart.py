"""Commands of the page around a killed daemon, and failed tasks: one effect, a receipt, nothing typed is lost."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import pytest
from synthetic.browser.window import Window, chromium, window_in
from synthetic.daemon.prometheus import free_port
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.third_party import install
from synthetic.until import poll

from rftd.streams.events import experiment as life
from rftd.streams.events import task
from rftd.streams.events.registry import Event

pytestmark = pytest.mark.e2e
LONG: Final = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 4000")
TASKSET: Final = "buffer.explorer_input.taskset"
OPTIONS: Final = (
    f"{TASKSET}.default_reward_fn_type=picky",
    f"{TASKSET}.max_retry_times=0",
    "explorer.rollout_model.extra_engine_args={latency_s: 4}",
    "trainer.engine_args={step_s: 2}",
    "name=long",
)
"""Fields of a slow run with failed tasks: little work beside the browser."""
PICKY: Final = """
import pathlib

class Picky:
    def score(self, response, truth, task):
        if truth in ("0", "2", "4") and not pathlib.Path(__file__).with_name("enough").exists():
            raise ValueError("a row without <b>sense</b>")
        return 1.0
"""
REOPENED: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("Prioritize", {"Priority": "7"}),
    ("Fork", {"Continue from step": "1", "Name; default": "forked"}),
    ("Note", {"Note": "a note"}),
    ("Labels", {"Labels": "team=blue"}),
)
"""Commands by title, with fields by label, whose panel is closed without an answer and opened again."""
EFFECTS: Final = (
    life.ExperimentPaused,
    life.ExperimentResumed,
    life.ExperimentForked,
    life.ExperimentPrioritized,
    life.ExperimentAnnotated,
    life.ExperimentCancelled,
    task.TaskRetried,
)
CONFIRM: Final = "#steer-confirm:not([disabled])"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A daemon on one port through restarts, with a run under way, one in the queue, and three failed tasks."""
    folder = tmp_path_factory.mktemp("restart")
    install(folder, "rftd_picky", PICKY, {"rftd.rewards": {"picky": "rftd_picky:Picky"}})
    environ = {"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(folder), "RFTD_PASS_ENV": "PYTHONPATH"}
    scene = Scene(folder, "--port", str(free_port()), environ=environ)
    with scene.host:
        settings = [word for option in OPTIONS for word in ("-s", option)]
        submitted = scene.rftd("submit", str(scene.write(LONG)), *settings)
        assert submitted.status == 0, submitted.err
        scene.submit(LONG, "name=idle")
        scene.until_step("long", 1)
        poll(lambda: len(letters(scene)) >= 3)
        (folder / "enough").touch()
        yield scene


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of this machine."""
    with chromium() as browser:
        yield browser


def letters(scene: Scene) -> list[dict[str, Any]]:
    """The open dead letters."""
    return list(scene.get("/v1/dead-letters").json()["items"])


def effects(scene: Scene) -> Counter[type[Event]]:
    """Numbers of events by type, read in a thread: playwright's own loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return Counter(type(event) for event in thread.submit(scene.events, Event).result())


def link_of(scene: Scene, token: str) -> str:
    """A link that signs in with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(f"{scene.host.url}/v1/login-links", headers=headers, json={}, trust_env=False)
    return f"{scene.host.url}{answer.json()['path']}"


def opened(page: Any, scene: Scene, run: str, title: str, fields: Mapping[str, str]) -> None:
    """The panel of a command, opened in the list of runs, with its fields filled in."""
    page.goto(scene.host.url)
    page.get_by_label(f"Steer {run}", exact=True).dispatch_event("click")  # a mouse waits while rows are drawn again
    page.locator("#steer-acts").get_by_role("button", name=title, exact=True).click()
    for label, text in fields.items():
        page.locator("#steer").get_by_label(label).first.fill(text)


def unanswered(page: Any, path: str, *, kill: int = 0) -> None:
    """Sends the command of the open panel, whose answer is lost; `kill` is the pid of a process killed meanwhile."""

    def lose(route: Any) -> None:
        route.fetch()
        if kill:
            os.kill(kill, signal.SIGKILL)
        route.abort()

    page.locator(CONFIRM).wait_for()
    page.route(re.compile(f"{path}$"), lose)
    page.locator("#steer-confirm").click()
    page.locator("#receipt", has_text="No answer").wait_for()
    page.unroute(re.compile(f"{path}$"))


def drafted(page: Any, scene: Scene, name: str) -> None:
    """The studio with a file of this name, accepted by the daemon."""
    page.goto(f"{scene.host.url}/studio")
    page.locator("#start").select_option("paste")
    text = LONG.replace("./", f"{scene.folder}/").replace("name: sums", f"name: {name}", 1)
    page.get_by_label("Experiment file", exact=True).fill(text)
    page.get_by_role("button", name="Use this text").click()
    page.locator("#verdict", has_text="would accept it").wait_for()
    page.locator("#submit[aria-disabled='false']").wait_for()


def test_a_daemon_killed_in_the_middle_of_every_command_of_two_people_has_one_effect(
    scene: Scene, browser: Any
) -> None:
    token = scene.rftd("token", "add", "friend", "--role", "admin").out.split()[-1]
    before = effects(scene)
    retried, dropped, _ = letters(scene)
    with window_in(browser, scene.link()) as owner, window_in(browser, link_of(scene, token)) as friend:
        tabs = [friend.page]  # with a panel open until there is a receipt
        opened(tabs[-1], scene, "idle", "Cancel", {"Reason, kept": "idle"})
        unanswered(tabs[-1], "cancel")
        for title in ("Pause", "Resume"):
            tabs.append(Window(owner.page.context.new_page()).page)
            opened(tabs[-1], scene, "long", title, {"Reason, kept": "tired"})
            unanswered(tabs[-1], title.lower())
        tabs.append(Window(friend.page.context.new_page()).page)
        for title, fields in REOPENED:
            page = owner.page if title == "Fork" else tabs[-1]  # to fork is to name paths, which the owner may
            opened(page, scene, "long", title, fields)
            unanswered(page, title.lower() if title in ("Prioritize", "Fork") else "annotate")
        tabs[-1].locator("#steer-close").click()
        tabs[-1].get_by_label("Star on long").dispatch_event("click")
        unanswered(tabs[-1], "annotate")
        for act, letter in (("retry", retried), ("drop", dropped)):
            asker = owner if act == "retry" else friend
            tabs.append(Window(asker.page.context.new_page()).page)
            tabs[-1].goto(f"{scene.host.url}/system")
            row = tabs[-1].locator("tr").filter(has=tabs[-1].locator(f"[data-letter='{letter['id']}']"))
            assert "<b>sense</b>" in row.inner_text()
            row.get_by_role("button", name=act.capitalize()).dispatch_event("click")
            if act == "drop":
                tabs[-1].locator("#steer-confirm[disabled]").wait_for()  # nothing is dropped without a reason
                tabs[-1].locator("#steer").get_by_label("Reason why").fill("it has no sense")
            unanswered(tabs[-1], act)
        # The daemon dies with the last command under way, and another name is typed before it is back.
        studio = owner.page
        drafted(studio, scene, "sent")
        studio.locator("#submit").click()
        unanswered(studio, "/v1/experiments", kill=scene.host.pid)
        tabs.append(studio)
        studio.locator("[id='name']").fill("typed")
        studio.locator("#verdict", has_text="does not answer").wait_for()
        scene.host.tend()
        for window, link in ((owner, scene.link()), (friend, link_of(scene, token))):
            page = window.page.context.new_page()
            page.goto(link)
            page.wait_for_url(lambda url: "/login" not in url)
            page.close()
        for page in tabs:
            page.locator(CONFIRM, has_text="Send again").click()
            page.locator("#receipt", has_text="recorded").wait_for()
            if page not in (owner.page, friend.page):
                page.close()
        # A terminal sends one command by the request id of the page, which sends it again.
        key = friend.page.evaluate("Object.entries(localStorage).find(pair => pair[0].endsWith('/note'))[1]")
        again = scene.rftd(
            "note", "long", "a note", "--request-id", json.loads(key)["key"], environ={"RFTD_TOKEN": token}
        )
        assert again.status == 0, again.err
        studio.locator("#yaml .changed", has_text="name: typed").wait_for()
        studio.locator("#submit[aria-disabled='false']").click()
        studio.locator(CONFIRM).click()
        studio.get_by_role("link", name="Open typed").wait_for()
        for title, fields in REOPENED:
            page = owner.page if title == "Fork" else friend.page
            opened(page, scene, "long", title, {})
            page.locator("#receipt", has_text="Sent before, without an answer").wait_for()
            for label, text in fields.items():
                assert page.locator("#steer").get_by_label(label).first.input_value() == text
            page.locator(CONFIRM).click()
            page.locator("#receipt", has_text="recorded as event").wait_for()
    after = effects(scene) - before
    assert {kind: after[kind] for kind in EFFECTS} == dict.fromkeys(EFFECTS, 1) | {life.ExperimentAnnotated: 3}
    assert after[life.ExperimentSubmitted] == 3, "the fork and two of the studio"
    names = {row["name"] for row in scene.get("/v1/experiments").json()["items"]}
    assert names == {"long", "idle", "forked", "sent", "typed"}
    states = {row["id"]: row["state"] for row in scene.get("/v1/dead-letters?all=true").json()["items"]}
    assert (states[retried["id"]], states[dropped["id"]]) == ("retried", "dropped")


@pytest.mark.parametrize("role", ["read", "submit"])
def test_buttons_of_a_failed_task_say_that_they_need_an_admin(scene: Scene, browser: Any, role: str) -> None:
    token = scene.rftd("token", "add", role, "--role", role).out.split()[-1]
    with window_in(browser, link_of(scene, token)) as window:
        window.page.goto(f"{scene.host.url}/system")
        window.page.locator("#refusal", has_text=f"has the role {role}, and this needs admin").wait_for()
        for act in ("retry", "drop"):
            button = window.page.locator(f"[data-act='{act}']").first
            assert button.get_attribute("aria-disabled") == "true"
            assert button.get_attribute("aria-describedby") == "refusal"
            button.dispatch_event("click")
        assert not window.page.locator("#steer").is_visible()
        window.check_faults()
