"""An open page while its daemon dies and comes back, and while its run is archived and removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.browser.window import chromium, window_in
from synthetic.daemon.prometheus import free_port
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.until import poll

pytestmark = pytest.mark.e2e


def test_an_open_page_names_its_age_and_reconnects_in_its_place(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--port", str(free_port()))
    with scene.host, chromium() as browser:
        name = scene.submit(EXPERIMENT, *SHORT)
        scene.until_ended(name)
        with window_in(browser, scene.link()) as window:
            page = window.page
            page.goto(f"{scene.host.url}/runs/{name}")
            page.get_by_text("live", exact=True).wait_for()
            typed = page.get_by_label("Another figure")
            typed.fill("half a wo")
            scene.kill("daemon", name)
            page.locator("#away", has_text="You see the state of").wait_for()
            page.locator("#away", has_text="has not answered for").wait_for()
            poll(lambda: scene.page(name))
            # A restarted daemon knows no browser: the page waits for a new link, and keeps its words.
            tab = page.context.new_page()
            tab.goto(scene.link())
            tab.close()
            page.locator("#away").wait_for(state="hidden")
            page.get_by_text("live", exact=True).wait_for()
            assert typed.input_value() == "half a wo"


def test_an_open_page_tells_when_its_run_is_archived_and_removed(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *SHORT)
    scene.until_ended(name)
    with chromium() as browser, window_in(browser, scene.link()) as window:
        page = window.page
        page.goto(f"{scene.host.url}/runs/{name}")
        page.get_by_text("live", exact=True).wait_for()
        assert scene.rftd("archive", name).status == 0
        page.get_by_text("To have them back: rftd restore").wait_for()
        assert scene.rftd("rm", name, "--yes", "--reason", "tidying up").status == 0
        page.get_by_text("The files of this run are gone").or_(page.get_by_text("no longer known")).first.wait_for()
