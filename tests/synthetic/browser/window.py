"""A real Chromium, signed in by the printed link: every message, refused request and policy violation is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

AXE: Final = Path(__file__).parent / "axe" / "axe.min.js"
PATIENCE_MS: Final = 60_000
"""Only a failure takes so long."""


class Window:
    """One tab of a browser, with what its pages complained of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.finished: list[Any] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self._see(request.url))
        page.on("requestfinished", lambda request: self.finished.append(request))

    def _see(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1", "data:")):
            self.foreign.append(url)

    def transferred_bytes(self) -> int:
        """The size of all answers since the last call, as they came over the wire."""
        sizes = [request.sizes() for request in self.finished]
        self.finished.clear()
        return sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)

    def faults(self) -> list[str]:
        """What the accessibility rules of axe find on the page, one line a fault.

        The script runs beside the page's policy, which forbids it to be put in as a tag.
        """
        self.page.evaluate(AXE.read_text(encoding="utf-8") + ";0")
        found = self.page.evaluate("axe.run().then(done => done.violations)")
        return [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]

    def check_faults(self) -> None:
        """Nothing complains, nothing foreign is asked for, axe finds nothing, and nothing scrolls sideways."""
        assert self.faults() == []
        assert not self.overflows()
        assert self.complaints == []
        assert self.foreign == []

    def overflows(self) -> bool:
        """True if the page scrolls sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@contextmanager
def window_in(browser: Any, link: str = "") -> Iterator[Window]:
    """A window of a profile without cookies, cache or storage, 1,440 wide; `link` signs in."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    try:
        window = Window(context.new_page())
        if link:
            window.page.goto(link)
            window.page.wait_for_url(lambda url: "/login" not in url)
        yield window
    finally:
        context.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of this machine; the test is skipped without one."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
