"""Commands to a run by buttons of a real browser, over a daemon with real worker processes of fake engines."""

from __future__ import annotations

import ast
import json
import re
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from synthetic.browser.window import Window, chromium, window_in
from synthetic.daemon.hostile_texts import HOSTILE
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.until import poll

from rftd.daemon.http.views import annotations, commands, experiments, system
from rftd.daemon.http.views.moment import ENDED
from rftd.daemon.trust.quota import Quota
from rftd.daemon.trust.token_file import TokenFile
from rftd.ops.errors import RftdError
from rftd.streams.events import experiment as life

E = TypeVar("E")
pytestmark = pytest.mark.e2e
LONG: Final = (
    EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 100000")
    + "data_processor: {experience_pipeline: {operators: [{name: pass_rate_calculator}]}}\n"
)
REASON: Final = '<img src=x onerror=alert(1)> it\'s "slow" $(id)'


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A daemon with a run under way, which each test finds running."""
    folder = tmp_path_factory.mktemp("steering")
    # Nothing listens there: alerts wait.
    options = ("--slots", "2", "--roots", str(folder.resolve()), "--alerts-to", "http://127.0.0.1:9/hook?key=s3cret")
    scene = Scene(folder, *options, environ={"XDG_STATE_HOME": str(folder / "state")})
    with scene.host:
        scene.submit(LONG, "name=long")
        scene.until_step("long", 2)
        yield scene


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of this machine."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def window(scene: Scene, browser: Any) -> Iterator[Window]:
    """A tab of the owner; afterwards the run goes on."""
    with window_in(browser, scene.link()) as window:
        yield window
    if scene.page("long").experiment.summary.state == "paused":
        ordered(scene, commands.resume, commands.Reason())
        scene.until_state("long", "running")


@pytest.fixture(autouse=True)
def slot(scene: Scene) -> Iterator[None]:
    """The second slot, free again afterwards: a run that a failed test left would keep it from every later test."""
    yield
    with scene.client() as client:
        others = [run for run in client.ask(experiments.listed).value.items if run.name != "long"]
        for run in (run for run in others if run.state not in ENDED):
            client.send(commands.cancel, commands.Reason(), name=run.id)
    for run in others:
        scene.until_ended(run.id)


@contextmanager
def signed_in(scene: Scene, browser: Any, token: str) -> Iterator[Window]:
    """A tab signed in with a token."""
    link = scene.rftd("open", "--print", environ={"RFTD_TOKEN": token}).out.split()[0]
    with window_in(browser, link) as window:
        yield window


def ordered(scene: Scene, command: Any, body: Any, name: str = "long") -> None:
    """Gives the run a command without the page."""
    with scene.client() as client:
        client.send(command, body, name=name)


def recorded(scene: Scene, kind: type[E]) -> list[E]:
    """The events of a kind, read in a thread: playwright's own loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(scene.events, kind).result()


def reasons_of_cancels(scene: Scene) -> list[str]:
    """The reasons of cancels by a person; the ends between tests have none."""
    return [event.reason for event in recorded(scene, life.ExperimentCancelled) if event.reason]


def opened(window: Window, scene: Scene, act: str, name: str = "long") -> Any:
    """The panel of a command on a run's page."""
    window.page.goto(f"{scene.host.url}/runs/{name}")
    window.page.locator(f"#act-{act}").click()
    return window.page.locator("#steer")


def drafted(window: Window, scene: Scene, text: str) -> None:
    """The studio with a file, accepted by the daemon."""
    page = window.page
    page.goto(f"{scene.host.url}/studio")
    page.locator("#start").select_option("paste")
    page.get_by_label("Experiment file", exact=True).fill(text)
    page.get_by_role("button", name="Use this text").click()
    page.locator("#verdict", has_text="would accept it").wait_for()
    page.locator("#submit[aria-disabled='false']").wait_for()


def confirmed(window: Window) -> str:
    """The receipt of the command in the open panel."""
    page = window.page
    page.locator("#steer-confirm:not([disabled])").click()
    page.locator("#receipt", has_text="recorded as event").wait_for()
    return str(page.locator("#receipt").inner_text())


def test_a_pause_says_its_consequence_and_has_one_effect_by_a_double_click(scene: Scene, window: Window) -> None:
    before = recorded(scene, life.ExperimentPaused)
    panel = opened(window, scene, "pause")
    panel.get_by_text("nothing new starts").wait_for()
    assert recorded(scene, life.ExperimentPaused) == before, "a dry run records nothing"
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
    assert [event.reason for event in recorded(scene, life.ExperimentPaused)[len(before) :]] == [REASON]
    window.page.locator("#act-resume").wait_for()
    assert not window.page.locator("#act-pause").count()


def test_two_tabs_with_one_panel_cause_one_resume(scene: Scene, window: Window) -> None:
    ordered(scene, commands.pause, commands.Reason())
    scene.until_state("long", "paused")
    before = recorded(scene, life.ExperimentResumed)
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
    assert len(recorded(scene, life.ExperimentResumed)) == len(before) + 1
    scene.until_state("long", "running")


def test_an_answer_lost_on_its_way_is_asked_for_again_with_one_effect(scene: Scene, window: Window) -> None:
    before = len(recorded(scene, life.ExperimentPrioritized))
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
    assert [event.priority for event in recorded(scene, life.ExperimentPrioritized)[before:]] == [7]


def test_notes_labels_and_a_star_are_set_and_hostile_ones_stay_texts(scene: Scene, window: Window) -> None:
    ordered(scene, annotations.annotate, annotations.Annotate(star=False))
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
    star = window.page.get_by_label("Star on long", exact=True)
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
    page.get_by_text("forked from long at step").wait_for()


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
            for act in ("pause", "cancel", "prioritize", "fork", "note", "labels", "star"):
                button = window.page.locator(f"[data-act='{act}']")
                assert button.get_attribute("aria-disabled") == "true"
                assert words in (button.get_attribute("title") or "")
                button.dispatch_event("click")  # a click waits for an enabled button, or meets one being drawn again
                assert not window.page.locator("#steer").is_visible()
            window.check_faults()
            window.page.goto(scene.host.url)
            window.page.get_by_label("Steer long", exact=True).dispatch_event("click")
            assert window.page.locator("#steer").is_visible() == (token == stranger)
            if token == stranger:
                window.page.locator("#consequence", has_text=words).wait_for()
                assert window.page.locator("#steer-confirm[disabled]").count()


@pytest.mark.parametrize("end", ["removed", "expired"])
def test_a_token_that_ends_while_open_keeps_the_words_until_signed_in_again(
    scene: Scene, browser: Any, end: str
) -> None:
    name = f"short-{end}"
    now_ns = time.time_ns()
    # Shorter than the shortest lifetime of `rftd token add`, which is a minute.
    expires_ns = now_ns + 30_000_000_000 if end == "expired" else None
    tokens = TokenFile(scene.data.root)
    token = tokens.add(name, "admin", created_ns=now_ns, expires_ns=expires_ns, quota=Quota())
    with signed_in(scene, browser, token) as window:
        before = len(reasons_of_cancels(scene))
        doomed = scene.submit(LONG, f"name=doomed-{end}")
        poll(lambda: scene.page(doomed))
        panel = opened(window, scene, "cancel", doomed)
        panel.locator("#steer-confirm:not([disabled])").wait_for()
        if end == "removed":
            scene.rftd("token", "rm", name)
        else:  # nobody touches the page: what it reads by itself finds the end
            window.page.locator("#live", has_text="signed out").wait_for()
        panel.get_by_label("Reason, kept").fill("enough")
        panel.get_by_text("signed out: type rftd open").wait_for()
        tab = window.page.context.new_page()
        tab.goto(scene.rftd("open", "--print").out.split()[0])
        tab.close()
        panel.locator("#steer-confirm:not([disabled])").wait_for()
        assert panel.get_by_label("Reason, kept").input_value() == "enough"
        assert len(reasons_of_cancels(scene)) == before
        confirmed(window)
        assert reasons_of_cancels(scene)[before:] == ["enough"]
        window.page.locator(".chip", has_text="cancelled").wait_for()


def test_a_shared_file_works_offline_and_a_deep_link_shows_the_same_answer(
    scene: Scene, window: Window, browser: Any, tmp_path: Path
) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/runs/long")
    with page.expect_download() as download:
        page.get_by_role("link", name="Share as a file").dispatch_event("click")
    saved = tmp_path / "long.html"
    download.value.save_as(saved)
    context = browser.new_context(offline=True)
    shared = Window(context.new_page())
    shared.page.goto(saved.as_uri())
    for title in ("Figures", "Curves", "Samples", "Configuration"):
        shared.page.get_by_role("heading", name=title, exact=True).wait_for()
    assert shared.page.locator("svg").count() >= 3
    assert shared.page.locator("script").count() == 0
    assert shared.complaints == []
    assert shared.foreign == [saved.as_uri()], "nothing but the file itself is read"
    context.close()
    page.goto(f"{scene.host.url}/runs/long/rollouts?step=1&order=-reward")
    page.locator("#answer[data-experience]").wait_for()
    first = page.locator("#answer").get_attribute("data-experience")
    page.keyboard.press("j")
    page.locator(f"#answer:not([data-experience='{first}'])").wait_for()
    page.wait_for_url("**id=*")
    chosen = page.locator("#answer").get_attribute("data-experience")
    with window_in(browser, scene.link()) as elsewhere:
        elsewhere.page.goto(page.url)
        elsewhere.page.locator(f"#answer[data-experience='{chosen}']").wait_for()
        assert "order=-reward" in elsewhere.page.url


def test_notes_and_stars_stand_in_the_history_as_texts(scene: Scene, window: Window) -> None:
    with scene.client() as client:
        client.send(annotations.annotate, annotations.Annotate(note=REASON, star=True), name="long")
    page = window.page
    page.goto(f"{scene.host.url}/runs/long/history?form=all&type=experiment.annotated")
    event = page.locator("details.ev").first
    event.locator("summary").click()
    shown = event.locator("pre").inner_text()
    assert json.loads(shown)["payload"]["note"] == REASON
    assert json.loads(shown)["payload"]["star"] is True
    window.check_faults()


@pytest.mark.parametrize("role", ["submit", "admin"])
def test_a_role_submits_by_the_studio_and_gives_every_command(scene: Scene, browser: Any, role: str) -> None:
    """To an experiment of its own; an admin's to those of others are in test_page_restart."""
    token = scene.rftd("token", "add", f"author-{role}", "--role", role).out.split()[-1]
    folder = scene.folder.resolve()
    (folder / "model").mkdir(exist_ok=True)
    text = LONG.replace("./", f"{folder}/").replace("name: sums", f"name: own-{role}", 1)
    text = text.replace("model_path: fake", f"model_path: {folder}/model")
    text = text.replace(f"checkpoint_root_dir: {folder}/checkpoints", f"checkpoint_root_dir: {folder}/own-{role}")
    run = f"own-{role}"
    with signed_in(scene, browser, token) as window:
        drafted(window, scene, text)
        window.page.locator("#look[aria-disabled='false']").click()
        window.page.locator("#trial pre", has_text="0+0=").first.wait_for()
        window.page.locator("#submit").click()
        confirmed(window)
        window.page.get_by_role("link", name=f"Open {run}").click()
        window.page.locator("h1", has_text=run).wait_for()
    scene.until_step(run, 2)
    with signed_in(scene, browser, token) as window:
        for act, state in (("pause", "paused"), ("resume", "running")):
            opened(window, scene, act, run)
            confirmed(window)
            scene.until_state(run, state)
        window.page.goto(f"{scene.host.url}/runs/{run}?fork=1")
        window.page.locator("#steer").get_by_label("Name").fill(f"twig-{role}")
        confirmed(window)
        poll(lambda: scene.page(f"twig-{role}"))
        ordered(scene, commands.cancel, commands.Reason(), f"twig-{role}")
        for act, label, words in (
            ("prioritize", "Priority", "3"),
            ("note", "Note", "mine"),
            ("labels", "Labels", "team=own"),
            ("star", "", ""),
            ("cancel", "Reason, kept", "enough"),
        ):
            window.page.goto(f"{scene.host.url}/runs/{run}")
            window.page.locator(f"[data-act='{act}']").dispatch_event("click")
            if label:
                window.page.locator("#steer").get_by_label(label).first.fill(words)
            confirmed(window)
    summary = scene.until_ended(run).experiment.summary  # the tables follow the recorded events
    assert (summary.state, summary.priority, summary.labels, summary.starred) == ("cancelled", 3, {"team": "own"}, True)


def test_a_run_that_ends_while_it_is_being_paused_says_so_and_keeps_the_words(scene: Scene, window: Window) -> None:
    name = scene.submit(LONG, "name=brief")
    scene.until_step(name, 1)
    panel = opened(window, scene, "pause", name)
    panel.get_by_label("Reason, kept").fill(REASON)
    panel.locator("#steer-confirm:not([disabled])").wait_for()
    before = len(recorded(scene, life.ExperimentPaused))
    # The page judges anew at every change: what it sends is asked for before it has seen the end.
    window.page.route(re.compile("dry_run=true"), lambda route: route.abort())
    ordered(scene, commands.cancel, commands.Reason(), name)
    window.page.evaluate("document.getElementById('steer-confirm').disabled = false")
    window.page.evaluate("document.getElementById('steer-form').requestSubmit()")
    panel.locator("#consequence.refused", has_text="cancelled").wait_for()
    assert panel.get_by_label("Reason, kept").input_value() == REASON
    window.page.unroute(re.compile("dry_run=true"))
    window.complaints.clear()  # of the aborted requests, and of the refusal
    assert len(recorded(scene, life.ExperimentPaused)) == before
    scene.until_ended(name)
    window.page.locator(".chip", has_text="cancelled").wait_for()
    assert not window.page.locator("#act-pause").count()


def test_the_system_shows_devices_engines_pipelines_and_alerts(scene: Scene, window: Window) -> None:
    page = window.page
    page.goto(f"{scene.host.url}/system")
    for region, text in (
        ("Devices", "cpu 0"),
        ("Engines and sandboxes", "engine torch"),
        ("Engines and sandboxes", "sandbox namespaces"),
        ("Pipelines", "pass_rate_calculator"),
        ("Alerts", "None yet."),
    ):
        page.get_by_role("region", name=region, exact=True).get_by_text(text).first.wait_for()
    page.get_by_text("to 127.0.0.1").wait_for()
    assert "s3cret" not in page.content()
    window.check_faults()
    with scene.client() as client:
        (row,) = client.ask(system.pipelines).value.items
    assert (row.name, row.kind, row.operators) == ("long", "experience", ["pass_rate_calculator"])
