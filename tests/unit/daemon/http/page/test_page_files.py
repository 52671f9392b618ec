"""Scripts and styles of the page: digests of other projects' files, one address for each file, nothing inline."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import httpx
import pytest
from synthetic.browser.window import AXE

from rftd.daemon.http.page.assets import FOLDER, address_of, assets

pytestmark = pytest.mark.anyio
VENDORED = (FOLDER / "vendor", AXE.parent)


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: folder.name)
def test_files_of_other_projects_have_their_digests_and_licences(folder: Path) -> None:
    lines = [line.split() for line in (folder / "SHA256SUMS").read_text().splitlines()]
    digests = {name: digest for digest, name in lines}
    files = {path.name for path in folder.iterdir()} - {"SHA256SUMS", "VERSIONS"}
    assert files == set(digests)
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files} == digests
    assert [name for name in files if name.endswith("LICENSE")]


def test_templates_have_no_inline_script_style_or_foreign_address() -> None:
    for path in (FOLDER / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:|https?://|hx-on|\|\s*safe", text), path.name
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), path.name


async def test_each_file_answers_without_a_token_and_for_ever(client: httpx.AsyncClient) -> None:
    for name in assets():
        answer = await client.get(address_of(name))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert (await client.get("/static/..%2Fassets.py")).status_code == 404
