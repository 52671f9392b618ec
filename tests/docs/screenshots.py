"""Writes pictures of every page of the recorded run, light and dark, 1,440 and 800 wide, into build/screenshots.

python -P tests/docs/screenshots.py [PAGE...]

The pictures of IN_DOCS become docs/page-NAME.png, in 128 colours, below 150 KB each. PAGE: only these pages.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from PIL import Image

sys.path.append(str(Path(__file__).parents[1]))

from synthetic.browser.window import chromium

from rftd.daemon.demo.recording import serve_recording
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views import access

ROOT: Final = Path(__file__).parents[2]
SHOTS: Final = ROOT / "build" / "screenshots"
MOST_BYTES: Final = 150_000
PAGES: Final = {
    "runs": "/",
    "run": "/runs/sums",
    "rollouts": "/runs/sums/rollouts?order=-reward&state=planned",
    "drops": "/runs/sums/drops",
    "evaluations": "/runs/sums/evaluations",
    "timeline": "/runs/sums/timeline",
    "history": "/runs/sums/history",
    "lineage": "/runs/sums/lineage",
    "configuration": "/runs/sums/configuration",
    "studio": "/studio",
    "system": "/system",
    "steering": "/runs/sums",
}
IN_DOCS: Final = ("run", "rollouts", "studio", "steering", "system")


def main() -> None:
    """Takes the pictures, and fails if one of the docs is too large."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    pages = sys.argv[1:] or list(PAGES)
    with serve_recording() as host, chromium() as browser:
        tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        with Client(host.settings, {}) as client:
            tab.goto(client.url + client.send(access.new_link, access.NewLink()).value.path)
        for name in pages:
            for width in (1440, 800):
                for scheme in ("light", "dark"):
                    _shoot(tab, f"{host.url}{PAGES[name]}", SHOTS / f"{name}-{width}-{scheme}.png", width, scheme)
    for name in (name for name in IN_DOCS if name in pages):
        path = ROOT / "docs" / f"page-{name}.png"
        with Image.open(SHOTS / f"{name}-1440-light.png") as picture:
            picture.convert("RGB").quantize(128).save(path, optimize=True)
        if path.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{path} has {path.stat().st_size} bytes")


def _shoot(tab: Any, url: str, path: Path, width: int, scheme: str) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(color_scheme=scheme)
    tab.goto(url)
    tab.get_by_text("live", exact=True).wait_for()
    if tab.locator("#curves").count():
        tab.locator("#curves canvas").first.wait_for()
    tab.wait_for_timeout(1000)
    if path.name.startswith("steering"):
        tab.locator("#act-note").dispatch_event("click")
        tab.locator("#steer").get_by_label("Note", exact=True).fill("The reward rises from step 325 on.")
    tab.locator("#verdict:has-text('checking')").wait_for(state="detached")
    if tab.locator("#steer:visible").count():
        tab.locator("#steer-confirm:not([disabled])").wait_for()
    tab.screenshot(path=str(path))


if __name__ == "__main__":
    main()
