"""The pages of a run in a real browser, over texts of strangers: each is shown as text, and none is markup."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from synthetic.browser.window import Window, chromium
from synthetic.daemon.command_line import Served
from synthetic.daemon.served_daemon import served_daemon
from synthetic.log.hostile_run import WORDS, hostile_run

pytestmark = pytest.mark.e2e
MARKUP = """[...document.querySelectorAll('*')].filter(element => element.matches(
    'img, iframe, object, embed, base, script:not([src]), style, [href^="javascript:" i], [action^="javascript:" i]')
    || element.getAttributeNames().some(name => name.startsWith('on'))).map(element => element.outerHTML)"""
WIDE = """[...document.querySelectorAll('main *')].filter(element =>
    element.getBoundingClientRect().right > innerWidth).map(element => element.outerHTML.slice(0, 200))"""
SHOWN = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</style><style>")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon with the hostile run, open to all, with a hostile note on a rollout."""
    folder = tmp_path_factory.mktemp("hostile")
    with served_daemon(folder, run=hostile_run(folder)) as served:
        yield served


@pytest.fixture(scope="module")
def window() -> Iterator[Window]:
    with chromium() as browser:
        yield Window(browser.new_context(viewport={"width": 1440, "height": 1000}).new_page())


def test_texts_of_strangers_are_text_on_every_page(served: Served, window: Window) -> None:
    page, run = window.page, f"/runs/{served.parts.run.id}"
    client = httpx.Client(base_url=served.url, trust_env=False)
    api = f"/v1/experiments/{served.parts.run.id}"
    spoken, plain, *_ = client.get(f"{api}/experiences?order=oldest").raise_for_status().json()["items"]
    note = {"experience": spoken["id"], "note": WORDS, "labels": {WORDS: WORDS}, "star": True}
    client.post(f"{api}/annotate", json=note).raise_for_status()
    words = quote(WORDS, safe="")
    for address in (
        "/",
        f"/?q={words[:300]}",
        run,
        f"{run}?metric={words[:200]}",
        f"{run}/rollouts",
        f"{run}/rollouts?id={spoken['id']}",
        f"{run}/rollouts?id={plain['id']}&colour=length",
        f"{run}/rollouts?q=script",
        f"{run}/rollouts?q={quote('<script>alert(1)')}",
        f"{run}/drops",
        f"{run}/evaluations?order=worst",
        f"{run}/held-out/0",
    ):
        response = page.goto(f"{served.url}{address}")
        assert response.status == 200, page.locator("body").inner_text()
        page.locator("h1").first.wait_for()
        assert page.evaluate(MARKUP) == [], address
        if "colour" not in address and "q=" not in address:
            text = page.evaluate(
                "document.body.textContent + [...document.querySelectorAll('option')].map(o => o.value)"
            )
            assert [shown for shown in SHOWN if shown not in text] == [], address
        wide = page.evaluate(WIDE) if window.overflows() else []
        assert wide == [], address
    assert window.complaints == []
    assert window.foreign == []


def test_a_token_and_a_typed_note_of_a_stranger_are_text(served: Served, window: Window) -> None:
    page = window.page
    page.goto(f"{served.url}/runs/{served.parts.run.id}/rollouts?order=oldest")
    page.locator("#strips canvas").focus()
    page.keyboard.press("End")
    page.locator("#strips .readout", has_text="token").wait_for()
    page.locator("#note-text").fill(WORDS.replace("\n", " ")[:400])
    page.keyboard.press("Enter")
    page.locator("p.note", has_text="<img src=x onerror=alert(1)>").first.wait_for()
    assert page.evaluate(MARKUP) == []
    assert window.complaints == []
